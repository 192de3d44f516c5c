// What JupyterLab does with a kernel, by JupyterLab's own code (@jupyterlab/services), against the address in argv.
// Prints one JSON object with what came of it.
"use strict";

const { createRequire } = require("node:module");
const [modules, baseUrl, token] = process.argv.slice(2);
const load = createRequire(`${modules}/`);
const { KernelManager, KernelSpecManager, ServerConnection, SessionManager } = load("@jupyterlab/services");
const WebSocket = load("ws");

async function run(kernel, code, options = {}) {
  const said = [];
  const future = kernel.requestExecute({ code, allow_stdin: true, ...options });
  future.onIOPub = (message) => said.push([message.header.msg_type, message.content]);
  future.onStdin = (message) => {
    if (message.header.msg_type === "input_request") {
      kernel.sendInputReply({ status: "ok", value: "ada" }, message.header);
    }
  };
  const reply = await future.done;
  return { reply: reply.content, said, text: said.filter(([kind]) => kind === "stream").map(([, c]) => c.text).join("") };
}

async function until(signal, wanted) {
  await new Promise((resolve) => signal.connect((_, value) => wanted(value) && resolve()));
}

async function main() {
  const serverSettings = ServerConnection.makeSettings({
    baseUrl,
    wsUrl: baseUrl.replace("http", "ws"),
    token,
    appendToken: true,
    WebSocket,
  });
  const outcome = {};

  const specs = new KernelSpecManager({ serverSettings });
  await specs.ready;
  outcome.specs = Object.keys(specs.specs.kernelspecs);

  const kernels = new KernelManager({ serverSettings });
  const sessions = new SessionManager({ serverSettings, kernelManager: kernels });
  await sessions.ready;
  const session = await sessions.startNew({ path: "lab.ipynb", name: "lab.ipynb", type: "notebook", kernel: { name: "python3" } });
  const kernel = session.kernel;
  outcome.info = (await kernel.info).language_info.name;

  outcome.first = await run(kernel, "print('hello', input('who? '))\n40 + 2");
  outcome.completion = (await kernel.requestComplete({ code: "pri", cursor_pos: 3 })).content.matches;
  outcome.failed = (await run(kernel, "1 / 0")).reply.ename;

  // Binary parts, in the framing that JupyterLab asks for.
  await run(kernel, [
    "from comm import get_comm_manager",
    "def opened(comm, message):",
    "    comm.on_msg(lambda said: comm.send({'n': 1}, buffers=[b'\\x01' + bytes(said['buffers'][0])]))",
    "get_comm_manager().register_target('echo', opened)",
  ].join("\n"));
  const comm = kernel.createComm("echo");
  const echoed = new Promise((resolve) => {
    comm.onMsg = (message) => resolve(Array.from(new Uint8Array(message.buffers[0].buffer ?? message.buffers[0])));
  });
  await comm.open({}).done;
  comm.send({}, {}, [new Uint8Array([2, 255]).buffer]);
  outcome.echoed = await echoed;

  const endless = run(kernel, "print('begun')\nwhile True: pass");
  await until(kernel.iopubMessage, (message) => message.header.msg_type === "stream");
  await kernel.interrupt();
  outcome.interrupted = (await endless).reply.ename;

  await run(kernel, "x = 1");
  await kernel.reconnect();
  outcome.afterReconnect = (await run(kernel, "print(x)")).text;
  await kernel.restart();
  outcome.afterRestart = (await run(kernel, "print('x' in globals())")).text;

  const died = until(kernel.statusChanged, (status) => status === "autorestarting");
  const deadly = kernel.requestExecute({ code: "import os; os.kill(os.getpid(), 9)" }).done.catch(() => null);
  await died;
  await deadly;
  outcome.afterDeath = (await run(kernel, "print('alive')")).text;

  await sessions.refreshRunning();
  outcome.running = Array.from(sessions.running()).map((model) => model.path);
  await session.shutdown();
  await kernels.refreshRunning();
  outcome.left = Array.from(kernels.running()).filter((model) => model.id === kernel.id).length;
  return outcome;
}

main().then(
  (outcome) => {
    process.stdout.write(JSON.stringify(outcome));
    process.exit(0);
  },
  (error) => {
    process.stderr.write(`${error.stack}\n`);
    process.exit(1);
  },
);
