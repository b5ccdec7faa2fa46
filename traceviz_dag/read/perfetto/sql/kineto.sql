-- Kineto events in Perfetto's tables: rows for the second reader, and launches, ancestors and steps by SQL alone.

-- Every event that a Kineto trace names, with the process and thread that the file gives it.
CREATE PERFETTO TABLE traceviz_events AS
SELECT s.id AS slice_id, s.ts, s.dur, s.name, s.category, s.depth, s.track_id, s.arg_set_id, p.pid, t.tid
FROM slice s
JOIN thread_track k ON s.track_id = k.id
JOIN thread t USING (utid)
LEFT JOIN process p USING (upid)
WHERE s.category IS NOT NULL AND s.dur >= 0;

-- Runtime and driver calls, and what ran on a device, with their correlation ids. One look at the arguments of each such
-- event is a hundred times as fast as a join with the table of all arguments.
CREATE PERFETTO TABLE traceviz_correlations AS
SELECT slice_id, ts, dur, name, extract_arg(arg_set_id, 'args.correlation') AS correlation, on_device
FROM (
    SELECT *, lower(category) IN ('kernel', 'gpu_memcpy', 'gpu_memset', 'memcpy', 'memset') AS on_device
    FROM traceviz_events
    WHERE lower(category) IN ('kernel', 'gpu_memcpy', 'gpu_memset', 'memcpy', 'memset')
        OR lower(category) GLOB '*runtime'
        OR lower(category) GLOB '*driver'
);

CREATE PERFETTO TABLE traceviz_calls AS
SELECT correlation, slice_id, ts, dur, name
FROM traceviz_correlations
WHERE NOT on_device AND correlation IS NOT NULL;

CREATE PERFETTO INDEX traceviz_calls_correlation ON traceviz_calls(correlation);

-- The call that launched each kernel or memory operation; several calls of one correlation id give several rows.
CREATE PERFETTO TABLE traceviz_launches AS
SELECT c.slice_id, c.correlation, l.slice_id AS launch_id, l.ts AS launch_ts, l.dur AS launch_dur, l.name AS launch_name
FROM traceviz_correlations c
JOIN traceviz_calls l ON c.correlation = l.correlation
WHERE c.on_device;

CREATE PERFETTO INDEX traceviz_launches_slice ON traceviz_launches(slice_id);

-- What stood on the thread around a slice, innermost first.
CREATE PERFETTO FUNCTION traceviz_ancestors(slice_id LONG)
RETURNS TABLE(id LONG, name STRING, category STRING, depth LONG) AS
SELECT id, name, category, depth FROM ancestor_slice($slice_id) ORDER BY depth DESC;

-- The training steps that torch.profiler marks.
CREATE PERFETTO TABLE traceviz_steps AS
SELECT slice_id, ts, dur, CAST(substr(name, 14) AS INT) AS step
FROM traceviz_events
WHERE name GLOB 'ProfilerStep#[0-9]*' AND category = 'user_annotation';
