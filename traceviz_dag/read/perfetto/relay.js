// Serves Perfetto's WASM trace processor over HTTP on loopback, with the endpoints of the native trace_processor_shell.
// Usage: node relay.js FOLDER, where FOLDER holds engine_bundle.js and the .wasm files. The first line on stdout is the
// port. It ends when its stdin closes, which the operating system does for it when the process that started it dies.
'use strict';
const fs = require('fs');
const http = require('http');
const path = require('path');

const folder = process.argv[2];
const complain = (...words) => console.error(...words);
process.stdin.on('end', () => process.exit(0)).on('error', () => process.exit(0)).resume();

// The bundle is a web worker: it wants a worker's scope, and fetches its module by a synchronous XMLHttpRequest.
class FileRequest {
  open(method, url) {
    this.file = path.join(folder, path.basename(url));
  }
  send() {
    this.response = fs.readFileSync(this.file);
    complain(`module ${path.basename(this.file)}, node ${process.version}`);
  }
}

// The bundle asks by a tiny module whether 64-bit memories exist. Some versions of Node know these and yet refuse the
// module itself, so the answer is whether that one is valid.
const holds64 = () => {
  const module64 = path.join(folder, 'trace_processor_memory64.wasm');
  return fs.existsSync(module64) && WebAssembly.validate(fs.readFileSync(module64));
};
const MEMORY_SECTION = 5;
const assembly = Object.create(WebAssembly);
assembly.Module = function (bytes) {
  if (bytes.length < 64 && bytes[8] === MEMORY_SECTION && !holds64()) throw new Error('no 64-bit memory');
  return new WebAssembly.Module(bytes);
};

const replies = [];
const port = {postMessage: (bytes) => replies.push(bytes)};
let crash = null;
let loadFault = null;

function exchange(bytes) {
  if (crash) throw new Error(crash);
  replies.length = 0;
  try {
    port.onmessage({data: bytes});
  } catch (error) {
    crash = `the trace processor crashed, perhaps for want of memory: ${String(error.message).split('\n')[0]}`;
    throw new Error(crash);
  }
  return Buffer.concat(replies);
}

// A little protobuf: the calls and replies hold integers and length-delimited fields only.
function varint(number) {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push((number % 128) | 128);
  return Buffer.from([...bytes, number]);
}
const delimited = (number, body) => Buffer.concat([varint(number * 8 + 2), varint(body.length), body]);
function* fieldsOf(buffer) {
  let at = 0;
  const next = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = buffer[at++];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  while (at < buffer.length) {
    const tag = next();
    const value = next();
    if (tag % 8 === 0) {
      yield [Math.floor(tag / 8), value];
    } else {
      yield [Math.floor(tag / 8), buffer.subarray(at, at + value)];
      at += value;
    }
  }
}

// Field numbers of perfetto.protos.TraceProcessorRpc.
const METHOD = {append: 1, finish: 2, query: 3, restore: 7, status: 10};
const ARGUMENT = {append: 101, query: 103};
const RESULT = {append: 201, query: 203, status: 210, finish: 212};
const FATAL = 5;

function call(name, body) {
  const parts = [Buffer.from([0x10, METHOD[name]])];
  if (body) parts.push(delimited(ARGUMENT[name], body));
  const results = [];
  for (const [, reply] of fieldsOf(exchange(delimited(1, Buffer.concat(parts))))) {
    for (const [number, value] of fieldsOf(reply)) {
      if (number === FATAL) throw new Error(String(value));
      if (number === RESULT[name]) results.push(value);
    }
  }
  return Buffer.concat(results);
}

const LARGEST_CALL = 16 << 20;
function append(body) {
  for (let at = 0; at < body.length; at += LARGEST_CALL) {
    const result = call('append', body.subarray(at, at + LARGEST_CALL));
    if ([...fieldsOf(result)].some(([number]) => number === 2)) return result;
  }
  return Buffer.alloc(0);
}
function finish() {
  for (const [number, error] of fieldsOf(call('finish'))) if (number === 1) loadFault = String(error);
  return Buffer.alloc(0);
}
function query(body) {
  if (loadFault) throw new Error(loadFault);
  return call('query', body);
}

const ERROR_FIELD = 2;
const READING = {'/status': () => call('status')};
const CHANGING = {
  '/parse': append,
  '/notify_eof': finish,
  '/query': query,
  '/restore_initial_tables': () => call('restore'),
  '/rpc': exchange,
};

const server = http.createServer((request, response) => {
  const answer = (status, body) => {
    response.writeHead(status, {'Content-Type': 'application/x-protobuf', 'Content-Length': body.length});
    response.end(body);
  };
  // A page of another origin can send requests to loopback too. A name of its own that it has pointed at loopback
  // shows in Host; its origin shows in every POST, but not in the GET of a picture: that must not change anything.
  const {host, origin, 'sec-fetch-site': site} = request.headers;
  const own = host === `127.0.0.1:${server.address().port}` && origin === undefined && site === undefined;
  const endpoints = {GET: READING, POST: CHANGING}[request.method];
  const endpoint = own && endpoints && Object.hasOwn(endpoints, request.url) ? endpoints[request.url] : undefined;
  if (!endpoint) {
    // What it sends is not kept.
    request.resume();
    return answer(404, Buffer.alloc(0));
  }
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    try {
      return answer(200, endpoint(Buffer.concat(chunks)));
    } catch (error) {
      return answer(200, delimited(ERROR_FIELD, Buffer.from(String(error.message))));
    }
  });
});
// A client may keep its connection idle for hours.
Object.assign(server, {keepAliveTimeout: 0, headersTimeout: 0, requestTimeout: 0, timeout: 0});

const scope = {location: {href: 'file:///'}};
const quiet = {log: complain, warn: complain, error: complain, info: complain, debug: complain};
const bundle = fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8');
const names = ['self', 'process', 'WorkerGlobalScope', 'XMLHttpRequest', 'WebAssembly', 'console', 'location'];
new Function(...names, bundle)(scope, undefined, Object, FileRequest, assembly, quiet, scope.location);
setImmediate(() => {
  scope.onmessage({data: port});
  call('status');
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
});
