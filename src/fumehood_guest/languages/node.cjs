'use strict';
// Runs cells of JavaScript and TypeScript in one Node, whose variables persist from cell to cell.
//
// A child of a context. It reads requests from one pipe and writes replies to another: each a length of four bytes,
// then JSON. What a cell prints is sent among the replies, as a byte for the stream and the text, so that stdout and stderr
// stay in order; what is printed between cells goes to fds 1 and 2, as what other processes print. It shares its
// process with the code of its user, so that its replies are checked like everything else of a guest, and it must never
// keep anything that the user may not have.
//
// A cell is a script that SIGINT breaks off, together with the continuations that follow at once; one with top-level
// await becomes an async function. A cell that waits for timers or input is ended by a SIGINT handler; if it computes
// after such a wait, a second thread, started when a cell begins to wait, breaks it off.
const fs = require('node:fs');
const modules = require('node:module');
const path = require('node:path');
const util = require('node:util');
const vm = require('node:vm');
const SyncWriteStream = require('internal/fs/sync_write_stream');
const { internalBinding } = require('internal/test/binding');
const { runMicrotasks } = internalBinding('task_queue');
// Bindings in place of `net` and `child_process`, which take a megabyte that most cells do not need.
const { Pipe, constants: { SOCKET } } = internalBinding('pipe_wrap');
const { streamBaseState, kReadBytesOrError, kArrayBufferOffset } = internalBinding('stream_wrap');
const { Process } = internalBinding('process_wrap');

const REQUESTS = Number(process.env.FUMEHOOD_REQUESTS);
const REPLIES = Number(process.env.FUMEHOOD_REPLIES);
const BREAKS = Number(process.env.FUMEHOOD_BREAKS);
const SETTLED = Number(process.env.FUMEHOOD_SETTLED);
for (const name of ['FUMEHOOD_REQUESTS', 'FUMEHOOD_REPLIES', 'FUMEHOOD_BREAKS', 'FUMEHOOD_SETTLED']) delete process.env[name];

const MAX_COMPLETIONS = 500;
const DISPLAY = Symbol.for('Jupyter.display');
const AWAITING = '(async () => { '.length;
// Frames of this program and of what calls it.
const OWN_FRAME = /^\s+at .*(languages\/node\.cjs|node:vm:\d|fumehood:1:1|processImmediate \(node:internal)/;

let current = null; // the request whose cell runs
let count = 0;
let userDirectory = null;
let breaker = null;

class ExitCode extends Error {
  constructor(code) {
    super(String(code));
    this.name = 'ExitCode';
    this.code = code;
  }
}

// -- replies

function send(reply) {
  const body = Buffer.from(JSON.stringify(reply));
  const frame = Buffer.alloc(4 + body.length);
  frame.writeUInt32BE(body.length);
  body.copy(frame, 4);
  let sent = 0;

  while (sent < frame.length) sent += fs.writeSync(REPLIES, frame, sent);
}

// -- output

// What the kernel writes to a pipe whole or not at all: an interrupt must not cut a message in half.
const WHOLE_BYTES = 4096;
const TURNS = 256;

// Kept: code of a cell may replace them.
const { writeSync, readSync } = fs;

let unsettled = false;
let turn = 0;

function print(fd, bytes) {
  if (current === null) {
    for (let sent = 0; sent < bytes.length;) sent += writeSync(fd, bytes, sent);
    return;
  }

  unsettled = true;

  for (let start = 0; start < bytes.length; start += WHOLE_BYTES - 5) {
    const piece = bytes.subarray(start, start + WHOLE_BYTES - 5);
    const frame = Buffer.allocUnsafe(5 + piece.length);
    frame.writeUInt32BE(1 + piece.length);
    frame[4] = fd;
    frame.set(piece, 5);
    writeSync(REPLIES, frame);
  }
}

// Returns when the context has passed on all that was printed: what then goes to fds 1 and 2 comes later.
function settle() {
  if (!unsettled || current === null) return;

  turn = (turn + 1) % TURNS;
  send({ type: 'settle', turn });
  const answer = Buffer.alloc(1);

  // The answer to a call that was interrupted comes first.
  do readSync(SETTLED, answer, 0, 1, null); while (answer[0] !== turn);

  unsettled = false;
}

// Text is written at once, so that nothing waits when a cell ends. The state of a stream of Node is not used: an
// interrupt in the middle of a call would leave it waiting for the end of that call.
class CellStream extends SyncWriteStream {
  write(chunk, encoding, done) {
    if (typeof encoding === 'function') [encoding, done] = [undefined, encoding];

    if (typeof chunk === 'string') print(this.fd, Buffer.from(chunk, encoding));
    else if (chunk instanceof Uint8Array) print(this.fd, Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength));
    // Throws the error of Node for what cannot be written.
    else return super.write(chunk, encoding, done);

    if (typeof done === 'function') process.nextTick(done);
    return true;
  }

  // Later cells print too.
  end(chunk, encoding, done) {
    if (typeof chunk === 'function') [chunk, done] = [undefined, chunk];
    else if (typeof encoding === 'function') [encoding, done] = [undefined, encoding];

    if (chunk !== undefined && chunk !== null) this.write(chunk, encoding);

    process.nextTick(() => {
      this.emit('finish');
      if (typeof done === 'function') done();
    });
    return this;
  }
}

for (const [name, fd] of [['stdout', 1], ['stderr', 2]]) {
  const stream = new CellStream(fd, { autoClose: false });
  stream.destroy = stream.destroySoon = stream._destroy = () => stream;
  stream.fd = fd;
  stream._type = 'pipe';
  Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream });
}

// Whatever writes to fds 1 and 2 by itself comes after what the cell has printed before.
function settledFirst(owner, name, concerns = () => true) {
  const original = owner[name];
  const wrapped = function (...args) {
    if (concerns(...args)) settle();
    return new.target ? Reflect.construct(original, args, new.target) : original.apply(this, args);
  };
  owner[name] = Object.defineProperties(wrapped, Object.getOwnPropertyDescriptors(original));
}

settledFirst(Process.prototype, 'spawn');
settledFirst(internalBinding('spawn_sync'), 'spawn');
for (const name of ['write', 'writeSync', 'writev', 'writevSync']) settledFirst(fs, name, (fd) => fd === 1 || fd === 2);
modules.syncBuiltinESMExports();

// -- values

function bundleOf(value) {
  if (value !== null && (typeof value === 'object' || typeof value === 'function')) {
    if (typeof value[DISPLAY] === 'function') {
      const bundle = value[DISPLAY]();
      if (bundle !== null && typeof bundle === 'object' && typeof bundle.then !== 'function') return clean(bundle, value);
    }

    if (typeof value.outerHTML === 'string') return { 'text/plain': inspect(value), 'text/html': value.outerHTML };
  }

  return { 'text/plain': inspect(value) };
}

function inspect(value) {
  try {
    return withoutOwnFrames(util.inspect(value));
  } catch (error) {
    return `[${error}]`;
  }
}

function withoutOwnFrames(text) {
  return text.split('\n').filter((line) => !OWN_FRAME.test(line)).join('\n');
}

function clean(bundle, value) {
  const formats = {};

  for (const [mime, content] of Object.entries(bundle)) {
    if (content instanceof Uint8Array) formats[mime] = Buffer.from(content).toString('base64');
    else if (content !== undefined && content !== null) formats[mime] = content;
  }

  if (!('text/plain' in formats)) formats['text/plain'] = value === undefined ? `[${Object.keys(formats).join(', ')}]` : inspect(value);

  return formats;
}

function escape(text) {
  return String(text).replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);
}

function tableOf(rows) {
  const list = Array.from(rows);
  const names = [...new Set(list.flatMap((row) => (row !== null && typeof row === 'object' ? Object.keys(row) : [])))];
  const cell = (value) => escape(typeof value === 'string' ? value : value === undefined ? '' : util.inspect(value));
  const head = names.map((name) => `<th>${escape(name)}</th>`).join('');
  const body = list.map((row) => `<tr>${names.map((name) => `<td>${cell(row?.[name])}</td>`).join('')}</tr>`).join('');
  return { 'text/html': `<table><thead><tr>${head}</tr></thead><tbody>${body}</tbody></table>`, 'text/plain': util.inspect(list) };
}

function display(value, options) {
  send({ type: 'display', data: options?.raw ? clean(value) : bundleOf(value) });
}

display.raw = (bundle) => display(bundle, { raw: true });
display.html = (text) => display.raw({ 'text/html': String(text) });
display.markdown = (text) => display.raw({ 'text/markdown': String(text) });
display.svg = (text) => display.raw({ 'image/svg+xml': String(text) });
display.json = (value) => display.raw({ 'application/json': JSON.parse(JSON.stringify(value)), 'text/plain': inspect(value) });
display.image = (bytes, mime = 'image/png') => display.raw({ [mime]: bytes });
display.table = (rows) => display.raw(tableOf(rows));

function hidden(name, value) {
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true, enumerable: false });
}

// -- what a cell finds

hidden('display', display);
hidden('__fumehood_microtasks', runMicrotasks);
hidden('module', { exports: {}, id: '.', filename: '', loaded: true, children: [], paths: [] });
hidden('exports', globalThis.module.exports);

function followDirectory() {
  const directory = process.cwd();

  if (directory === userDirectory) return;

  userDirectory = directory;
  const require = modules.createRequire(path.join(directory, 'cell.js'));
  require.main = globalThis.module;
  hidden('require', require);
  hidden('__dirname', directory);
  hidden('__filename', path.join(directory, 'cell.js'));
}

process.exit = (code) => { throw new ExitCode(Number(code ?? process.exitCode ?? 0)); };

// -- what cells may say that a script may not

function parse(code) {
  // Loaded when a cell needs it: this and what walks its trees take three megabytes.
  return require('internal/deps/acorn/acorn/dist/acorn').parse(code, { ecmaVersion: 'latest', sourceType: 'module', allowAwaitOutsideFunction: true, allowHashBang: true });
}

function imported(code, node) {
  const source = JSON.stringify(node.source.value);
  const lines = '\n'.repeat(code.slice(node.start, node.end).split('\n').length - 1);
  const attributes = (node.attributes ?? []).map((item) => `${code.slice(item.key.start, item.key.end)}: ${item.value.raw}`);
  const load = `await import(${source}${attributes.length ? `, { with: { ${attributes.join(', ')} } }` : ''})`;
  const names = [];

  for (const item of node.specifiers) {
    if (item.type === 'ImportDefaultSpecifier') names.push(`default: ${item.local.name}`);
    else if (item.type === 'ImportSpecifier') names.push(`${item.imported.name ?? item.imported.raw}: ${item.local.name}`);
  }

  const all = node.specifiers.find((item) => item.type === 'ImportNamespaceSpecifier');

  if (all) return `var ${all.local.name} = ${load}${names.length ? `, { ${names.join(', ')} } = ${all.local.name}` : ''};${lines}`;

  return names.length ? `var { ${names.join(', ')} } = ${load};${lines}` : `void (${load});${lines}`;
}

// Strings and comments, then words, brackets and other characters; a slash or a backtick needs the parser.
const TOKEN = /"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\/\/[^\n]*|\/\*[^]*?\*\/|[\w$]+|\s+|[^]/g;
const NAME = /^[A-Za-z_$][\w$]*$/;
const SHORT_CHARACTERS = 10_000;

// Returns the cell with `var` in place of `const` and `let`, if it declares each name once and by itself; otherwise null.
// The parser and its trees take a megabyte that such a cell does not need.
function withPlainNames(code) {
  const tokens = code.match(TOKEN) ?? [];
  const places = [...tokens.keys()].filter((place) => !/^(\s|\/[/*])/.test(tokens[place]));
  const word = (index) => tokens[places[index]] ?? '';
  const names = new Set();
  let depth = 0;

  for (const index of places.keys()) {
    const found = word(index);

    if (/^([`/\\#"'@]|import|export|class|await)$/.test(found) || found > '\x7f') return null;

    if (/^[([{]$/.test(found)) depth += 1;
    else if (/^[)\]}]$/.test(found)) depth -= 1;
    else if (depth === 0 ? found === ',' : found === 'var') return null;
    else if (depth === 0 && /^(const|let|var|function)$/.test(found) && !(found === 'function' && word(index - 1) === '=')) {
      const name = word(index + 1);

      if (!NAME.test(name) || name === 'let' || names.has(name) || /^[.)]$|^else$/.test(word(index - 1))) return null;

      names.add(name);

      if (/^(const|let)$/.test(found)) {
        if (word(index + 2) !== '=' || /^[=>]$/.test(word(index + 3))) return null;

        tokens[places[index]] = 'var';
      }
    }
  }

  if (depth !== 0) return null;

  try {
    const changed = tokens.join('');
    return new vm.Script(changed) && changed;
  } catch {
    return null; // V8 says of the cell as it was written what is wrong
  }
}

// A name may be declared again with another keyword, and modules may be imported; lines stay where they were.
function prepared(code) {
  if (!/\b(import|export|const|let|class)\b/.test(code)) return code;

  const quick = code.length > SHORT_CHARACTERS ? null : withPlainNames(code);

  if (quick !== null) return quick;

  let tree;
  try {
    tree = parse(code);
  } catch {
    return code; // V8 says what is wrong
  }

  const edits = [];

  for (const node of tree.body) {
    const declared = node.type.startsWith('Export') && node.declaration ? node.declaration : node;

    if (node.type === 'ImportDeclaration') edits.push([node.start, node.end, imported(code, node)]);
    else if (node.type === 'ExportNamedDeclaration' && !node.declaration || node.type === 'ExportAllDeclaration') {
      edits.push([node.start, node.end, '\n'.repeat(code.slice(node.start, node.end).split('\n').length - 1)]);
    } else if (declared !== node) edits.push([node.start, declared.start, '']);

    if (declared.type === 'VariableDeclaration' && (declared.kind === 'let' || declared.kind === 'const')) {
      edits.push([declared.start, declared.start + declared.kind.length, 'var']);

      for (const item of declared.declarations) if (item.init === null) edits.push([item.end, item.end, ' = undefined']);
    } else if (declared.type === 'ClassDeclaration' && declared.id) {
      edits.push([declared.start, declared.start, `var ${declared.id.name} = `], [declared.end, declared.end, ';']);
    }
  }

  edits.sort((a, b) => b[0] - a[0] || b[1] - a[1]);

  for (const [start, end, text] of edits) code = code.slice(0, start) + text + code.slice(end);

  return code;
}

// Types are blanked out where they stand; enums and namespaces need code of their own, whose lines a map translates.
function withoutTypes(code, name) {
  try {
    return { code: modules.stripTypeScriptTypes(code), map: null };
  } catch (error) {
    if (error.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw error;
  }

  const out = modules.stripTypeScriptTypes(code, { mode: 'transform', sourceMap: true, sourceUrl: name });
  const at = out.lastIndexOf('//# sourceMappingURL=');
  const encoded = out.slice(out.indexOf(',', at) + 1).trim();
  const map = new modules.SourceMap(JSON.parse(Buffer.from(encoded, 'base64').toString()));
  return { code: out.slice(0, at), map };
}

// -- errors

function described(error, cell) {
  if (!util.types.isNativeError(error) && !(error instanceof Error)) {
    const shown = inspect(error);
    return { ename: 'Uncaught', evalue: shown, traceback: [`Uncaught ${shown}`] };
  }

  const lines = inspect(error).split('\n');

  if (cell?.map) {
    lines.splice(0, 3, ...headInSource(lines.slice(0, 3), cell));
    lines.forEach((line, at) => (lines[at] = inSource(line, cell)));
  }

  return { ename: String(error.name), evalue: String(error.message), traceback: lines };
}

// What Node shows before an error that was thrown at the top: place, line, and an arrow below it.
function headInSource(head, cell) {
  const row = head[0].startsWith(`${cell.name}:`) && head[0].slice(cell.name.length + 1);
  const column = head[2]?.indexOf('^');

  if (!/^\d+$/.test(row) || !(column >= 0)) return head;

  const entry = cell.map.findEntry(Number(row) - 1, column);

  if (entry.originalLine === undefined) return head;

  const line = cell.source.split('\n')[entry.originalLine] ?? head[1];
  return [`${cell.name}:${entry.originalLine + 1}`, line, `${' '.repeat(entry.originalColumn)}^`];
}

function inSource(line, cell) {
  const place = line.indexOf(`${cell.name}:`);

  if (place < 0) return line;

  const start = place + cell.name.length + 1;
  return line.slice(0, start) + line.slice(start).replace(/^(\d+):(\d+)/, (_all, row, column) => original(cell.map, row, column));
}

function original(map, row, column) {
  const entry = map.findEntry(Number(row) - 1, Number(column) - 1);
  return entry.originalLine === undefined ? `${row}:${column}` : `${entry.originalLine + 1}:${entry.originalColumn + 1}`;
}

// -- cells

function finish(cell, reply) {
  if (current !== cell) return;

  current = null;

  for (const [name, value] of cell.envs) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }

  send({ type: 'reply', id: cell.id, ...reply });
}

function ended(cell, value) {
  if (value instanceof ExitCode) return finish(cell, value.code === 0 ? {} : { error: { ename: 'ExitCode', evalue: value.message, traceback: [`ExitCode: process.exit(${value.message})`] } });

  return finish(cell, { error: described(value, cell) });
}

function shown(cell, value) {
  let data;
  try {
    data = value === undefined || cell.silent ? undefined : bundleOf(value);
  } catch (error) {
    data = { 'text/plain': `[${error}]` };
  }

  finish(cell, { data });
}

const microtasks = new vm.Script('__fumehood_microtasks()', { filename: 'fumehood' });

function run(request) {
  const cell = { id: request.id, silent: request.silent, source: request.code, code: request.code, map: null, envs: [], name: '' };
  current = cell;
  count += 1;
  cell.name = `cell_${count}.${request.typescript ? 'ts' : 'js'}`;
  followDirectory();

  for (const [name, value] of Object.entries(request.envs)) {
    cell.envs.push([name, process.env[name]]);
    process.env[name] = value;
  }

  try {
    if (request.typescript) Object.assign(cell, withoutTypes(cell.code, cell.name));
  } catch (error) {
    const message = String(error.message);
    finish(cell, { error: { ename: error.name, evalue: message, traceback: [`${error.name}: ${message}`] } });
    return;
  }

  try {
    const code = prepared(cell.code);
    const awaiting = code.includes('await') ? require('internal/repl/await').processTopLevelAwait(code) : null;
    const script = new vm.Script(awaiting ?? code, {
      filename: cell.name,
      columnOffset: awaiting === null ? 0 : -AWAITING,
      importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
    });
    const value = script.runInThisContext({ breakOnSigint: true });

    if (awaiting === null) {
      microtasks.runInThisContext({ breakOnSigint: true });
      shown(cell, value);
      return;
    }

    // Kept: nothing else may hold the promise of a cell that waits.
    cell.promise = value;
    value.then((answer) => { if (current === cell) shown(cell, answer?.value); }, (error) => { if (current === cell) ended(cell, error); });
    microtasks.runInThisContext({ breakOnSigint: true });
  } catch (error) {
    if (error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') finish(cell, { interrupted: true });
    else ended(cell, error);
  }

  if (current === cell) watchWaiting();
}

// Waits in a thread of its own for a byte, and then breaks off what the main thread computes.
const BREAKER = `
  const fs = require('node:fs');
  const session = new (require('node:inspector').Session)();
  session.connectToMainThread();
  const byte = Buffer.alloc(1);
  const { parentPort, workerData } = require('node:worker_threads');
  require('node:fs').read(workerData, byte, 0, 1, null, function next(error, size) {
    if (error || !size) return;
    session.post('Runtime.terminateExecution');
    fs.read(workerData, byte, 0, 1, null, next);
  });
`;

function watchWaiting() {
  if (breaker !== null) return;

  const { Worker } = require('node:worker_threads');
  breaker = new Worker(BREAKER, { eval: true, workerData: BREAKS, env: {}, execArgv: [] });
  breaker.on('error', () => { breaker = null; });
  breaker.unref();
}

process.on('SIGINT', () => { if (current !== null) finish(current, { interrupted: true }); });
process.on('uncaughtException', (error) => {
  if (error instanceof ExitCode && current !== null) ended(current, error);
  else if (!(error instanceof ExitCode)) process.stderr.write(`Uncaught ${described(error).traceback.join('\n')}\n`);
});
process.on('unhandledRejection', (reason) => {
  if (reason instanceof ExitCode) {
    if (current !== null) ended(current, reason);
  } else process.stderr.write(`Uncaught (in promise) ${described(reason).traceback.join('\n')}\n`);
});

// -- questions

function check(code, typescript) {
  try {
    parse(typescript ? withoutTypes(code, 'cell.ts').code : code);
    return 'complete';
  } catch (error) {
    if (typescript && error.pos === undefined) return /Unexpected eof|Expected .*got '<eof>'|Unterminated/i.test(error.message) ? 'incomplete' : 'invalid';

    return error.pos >= code.trimEnd().length || /^Unterminated (template|comment)/.test(error.message) ? 'incomplete' : 'invalid';
  }
}

function complete(request) {
  const before = request.code.slice(0, request.cursor);
  const [, object, prefix] = /(?:([\w$][\w$.]*)\.)?([\w$]*)$/.exec(before);
  const done = (names) => send({
    type: 'answer', id: request.id, start: request.cursor - prefix.length,
    matches: [...new Set(names)].filter((name) => typeof name === 'string' && name.startsWith(prefix) && /^[\w$]+$/.test(name) && !name.startsWith('__fumehood')).sort().slice(0, MAX_COMPLETIONS),
  });
  if (object === undefined) return done(namesOf(globalThis));

  let value;
  try {
    // Only properties without getters are followed: nothing is run for this.
    value = object.split('.').reduce((owner, name) => property(Object(owner), name), globalThis);
  } catch {
    return done([]);
  }

  return done(value === undefined || value === null ? [] : namesOf(Object(value)));
}

function property(owner, name) {
  for (let next = owner; next && !util.types.isProxy(next); next = Object.getPrototypeOf(next)) {
    const found = Object.getOwnPropertyDescriptor(next, name);

    if (found) return found.value;
  }

  return undefined;
}

function namesOf(value) {
  const names = [];

  for (let next = value; next && !util.types.isProxy(next); next = Object.getPrototypeOf(next)) names.push(...Object.getOwnPropertyNames(next));

  return names;
}

// -- requests

function obey(request) {
  if (request.type === 'run') setImmediate(run, request);
  else if (request.type === 'sync') setImmediate(() => setImmediate(() => send({ type: 'answer', id: request.id })));
  else if (request.type === 'check') send({ type: 'answer', id: request.id, status: check(request.code, request.typescript) });
  else if (request.type === 'complete') complete(request);
}

let waiting = Buffer.alloc(0);
const input = new Pipe(SOCKET);
input.onread = (buffer) => {
  const size = streamBaseState[kReadBytesOrError];

  if (size < 0) process.reallyExit(0);
  if (size <= 0) return;

  waiting = Buffer.concat([waiting, Buffer.from(buffer, streamBaseState[kArrayBufferOffset], size)]);

  while (waiting.length >= 4) {
    const length = waiting.readUInt32BE(0);

    if (waiting.length < 4 + length) break;

    const request = JSON.parse(waiting.subarray(4, 4 + length).toString());
    waiting = waiting.subarray(4 + length);
    obey(request);
  }
};
input.open(REQUESTS);
input.readStart();
send({ type: 'ready', version: process.versions.node, typescript: typeof modules.stripTypeScriptTypes === 'function' });
