// The tools of LibreChat's agents, unmodified, against a server: what they return is told as one line of JSON.
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const tools = path.join(process.env.MODULES, '@librechat', 'agents', 'dist', 'esm', 'tools');
const load = (name) => import(pathToFileURL(path.join(tools, `${name}.mjs`)).href);
const { createCodeExecutionTool } = await load('CodeExecutor');
const { createProgrammaticToolCallingTool, fetchSessionFiles } = await load('ProgrammaticToolCalling');
const { createBashProgrammaticToolCallingTool } = await load('BashProgrammaticToolCalling');
const { createBashExecutionTool } = await load('BashExecutor');

const baseUrl = process.env.BASE_URL;
const authHeaders = { Authorization: `Bearer ${process.env.TOKEN}` };
const told = {};

async function call(tool, args, extra = {}) {
  const message = await tool.invoke({ type: 'tool_call', id: 'call_1', name: tool.name, args, ...extra });
  return [message.content, message.artifact];
}

async function refused(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    return error.message;
  }
}

const executor = createCodeExecutionTool({ baseUrl, authHeaders });
const [output, artifact] = await call(executor, {
  lang: 'py',
  code: "open('/mnt/data/t.csv', 'w').write('a,b')\nprint('made')",
});
told.made = [output.startsWith('stdout:\nmade\n'), artifact.files.map((file) => file.name)];

const refs = await fetchSessionFiles(baseUrl, artifact.session_id, { kind: 'user', id: 'user-1' }, authHeaders);
told.fetched = refs.map((file) => [file.name, file.id === artifact.files[0].id, file.kind]);

const [read] = await call(executor, { lang: 'py', code: "print(open('t.csv').read())" }, { _injected_files: refs });
told.read = read.split('\n')[1];

const bash = createBashExecutionTool({ baseUrl, authHeaders });
told.bash = (await call(bash, { command: 'echo hi' }))[0].split('\n')[1];

const asked = [];
const weather = {
  name: 'get-weather',
  invoke: async (input) => {
    asked.push(input.city);
    return { city: input.city, degrees: 20 };
  },
};
const context = {
  toolMap: new Map([[weather.name, weather]]),
  toolDefs: [{ name: weather.name, description: 'Weather', parameters: { type: 'object', properties: {} } }],
};
const programmatic = createProgrammaticToolCallingTool({ baseUrl, authHeaders });
const code = `
a, b = await asyncio.gather(get_weather(city="SF"), get_weather(city="NY"))
print(a["degrees"] + b["degrees"])
`;
told.programmatic = (await call(programmatic, { code }, context))[0].split('\n')[1];

const bashTools = createBashProgrammaticToolCallingTool({ baseUrl, authHeaders });
const script = 'set -u\ndata=$(get_weather \'{"city": "LA"}\')\necho "got $data"';
told.bashProgrammatic = (await call(bashTools, { code: script }, context))[0].split('\n')[1];
told.asked = asked.sort();

told.failed = await refused(call(programmatic, { code: 'get_weather\n1/0' }, context));
const stranger = createCodeExecutionTool({ baseUrl, authHeaders: { Authorization: 'Bearer wrong' } });
told.denied = await refused(call(stranger, { lang: 'py', code: '1' }));
const warm = createCodeExecutionTool({ baseUrl, authHeaders, executionProfile: 'stateful' });
told.mismatch = await refused(call(warm, { lang: 'py', code: '1' }));
console.log(JSON.stringify(told));
