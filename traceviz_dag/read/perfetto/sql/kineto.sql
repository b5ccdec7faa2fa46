-- Kineto events in Perfetto's tables: rows for the second reader, and launches, ancestors and steps by SQL alone.

-- Every event that a Kineto trace names, with the process and thread that the file gives it.
CREATE PERFETTO TABLE traceviz_events AS
SELECT s.id AS slice_id, s.ts, s.dur, s.name, s.category, s.depth, s.track_id, s.arg_set_id, p.pid, t.tid
FROM slice s
JOIN thread_track k ON s.track_id = k.id
JOIN thread t USING (utid)
LEFT JOIN process p USING (upid)
WHERE s.category IS NOT NULL AND s.dur >= 0;

-- Correlation ids, of runtime and driver calls and of what ran on a device.
CREATE PERFETTO TABLE traceviz_correlations AS
SELECT e.slice_id, a.int_value AS correlation,
    e.category IN ('kernel', 'gpu_memcpy', 'gpu_memset', 'Kernel', 'Memcpy', 'Memset') AS on_device
FROM traceviz_events e
JOIN args a USING (arg_set_id)
WHERE a.key = 'args.correlation';

CREATE PERFETTO TABLE traceviz_calls AS
SELECT c.correlation, c.slice_id, e.ts, e.dur, e.name
FROM traceviz_correlations c
JOIN traceviz_events e USING (slice_id)
WHERE NOT c.on_device AND lower(e.category) GLOB '*runtime' OR NOT c.on_device AND lower(e.category) GLOB '*driver';

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
