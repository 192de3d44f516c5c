// What a host written in JavaScript does, with the official SDK of either generation and over either transport; each line of
// `told` is looked at by test_javascript.py.
const { GENERATION, TRANSPORT, PYTHON, URL_OF_SERVER, TOKEN, FUMEHOOD_URL, FUMEHOOD_API_KEY } = process.env

const sdk =
  GENERATION === '1'
    ? {
        ...(await import('@modelcontextprotocol/sdk/client/index.js')),
        ...(await import('@modelcontextprotocol/sdk/client/stdio.js')),
        ...(await import('@modelcontextprotocol/sdk/client/streamableHttp.js')),
      }
    : { ...(await import('@modelcontextprotocol/client')), ...(await import('@modelcontextprotocol/client/stdio')) }

const transport =
  TRANSPORT === 'stdio'
    ? new sdk.StdioClientTransport({ command: PYTHON, args: ['-m', 'fumehood', 'mcp'], env: { FUMEHOOD_URL, FUMEHOOD_API_KEY } })
    : new sdk.StreamableHTTPClientTransport(new URL(URL_OF_SERVER), {
        requestInit: { headers: { Authorization: `Bearer ${TOKEN}` } },
      })
const options = GENERATION === '1' ? {} : { versionNegotiation: { mode: { pin: '2026-07-28' } } }
const client = new sdk.Client({ name: 'scene', version: '1' }, options)
await client.connect(transport)
const call = (name, args, more) =>
  GENERATION === '1' ? client.callTool({ name, arguments: args }, undefined, more) : client.callTool({ name, arguments: args }, more)

const told = {}
told.tools = (await client.listTools()).tools.map((tool) => tool.name)
const first = await call('run_code', { code: 'x = 41\nprint("made")' })
const place = first.structuredContent.sandbox_id
told.first = [first.structuredContent.stdout, first.isError ?? false]
told.state = (await call('run_code', { code: 'x + 1', sandbox_id: place })).content[0].text
const seen = []
const code = 'import time\nfor i in range(3):\n    print("step", i, flush=True)\n    time.sleep(0.3)'
await call('run_code', { code, sandbox_id: place }, { onprogress: (progress) => seen.push(progress.message) })
told.progress = seen.some((message) => message?.includes('step'))
const drawn = await call('run_code', { code: 'import matplotlib.pyplot as p; p.plot([1, 2]); p.show()', sandbox_id: place })
told.pictures = drawn.content.filter((item) => item.type === 'image').map((item) => item.mimeType)
const failed = await call('run_code', { code: '1/0', sandbox_id: place })
told.failed = [failed.isError, failed.structuredContent.error.name]
await call('write_file', { sandbox_id: place, path: 'a.csv', content: 'a,b\n1,2\n' })
const file = (await client.readResource({ uri: `sandbox://${place}/home/user/a.csv` })).contents[0]
told.file = [file.mimeType, file.text]
told.ended = (await call('kill_sandbox', { sandbox_id: place })).structuredContent.was_alive
await client.close()
console.log(JSON.stringify(told))
