// What a program does that uses E2B's JavaScript SDKs; each line of `told` is looked at by test_javascript.py.
import { Sandbox, Template } from '@e2b/code-interpreter'
import { Volume } from 'e2b'

const told = {}
const text = (bytes) => new TextDecoder().decode(bytes)
const nameOf = async (promise) => {
  try {
    await promise
    return 'no error'
  } catch (error) {
    return error.name
  }
}

const box = await Sandbox.create({ timeoutMs: 300_000, metadata: { by: 'js' }, envs: { FOO: 'bar' } })
const page = Sandbox.list({ query: { metadata: { by: 'js' } } })
told.listed = (await page.nextItems()).filter((item) => item.sandboxId === box.sandboxId).length
const info = await box.getInfo()
told.info = { templateId: info.templateId, state: info.state, metadata: info.metadata }
await box.setTimeout(200_000)
told.metrics = (await box.getMetrics()).length

// Files
await box.files.write('dir/a', 'hello')
await box.files.write([{ path: 'dir/b', data: new Blob(['blob']) }, { path: 'other', data: '1' }])
await box.files.write('packed', 'zip zip', { gzip: true })
let length = 0
for await (const piece of await box.files.read('dir/a', { format: 'stream' })) length += piece.length
told.read = [await box.files.read('dir/a'), text(await box.files.read('dir/a', { format: 'bytes' })), length, await box.files.read('packed')]
told.entries = (await box.files.list('dir')).map((entry) => entry.name)
told.watched = []
let seen
const both = new Promise((resolve) => (seen = resolve))
const watch = await box.files.watchDir('dir', (event) => {
  told.watched.push(`${event.type}:${event.name}`)
  if (told.watched.length === 3) seen()
})
await box.files.write('dir/c', '1')
await both
await watch.stop()
const down = await fetch(await box.downloadUrl('dir/a', { useSignatureExpiration: 100 }))
const form = new FormData()
form.append('file', new Blob(['put']))
const up = await fetch(await box.uploadUrl('put'), { method: 'POST', body: form })
const stale = await fetch(await box.downloadUrl('dir/a', { useSignatureExpiration: -100 }))
told.url = [down.status, await down.text(), up.status, await box.files.read('put'), stale.status]
told.missing = await nameOf(box.files.read('nowhere'))

// Commands
const ran = await box.commands.run('echo $FOO; pwd; echo err >&2', { cwd: '/tmp' })
told.command = [ran.stdout, ran.stderr, ran.exitCode]
try {
  await box.commands.run('exit 4')
} catch (error) {
  told.failed = [error.name, error.exitCode]
}
const cat = await box.commands.run('cat', { background: true, stdin: true })
await box.commands.sendStdin(cat.pid, 'one\n')
await box.commands.sendStdin(cat.pid, 'two\n')
await box.commands.closeStdin(cat.pid)
told.fed = (await cat.wait()).stdout
const sleeper = await box.commands.run('exec sleep 1000', { background: true, timeoutMs: 0 })
told.killed = [await sleeper.kill(), await nameOf(sleeper.wait())]
told.timedOut = await nameOf(box.commands.run('sleep 1000', { timeoutMs: 300 }))
let shown = ''
const terminal = await box.pty.create({ cols: 80, rows: 24, onData: (data) => (shown += text(data)) })
await box.pty.resize(terminal.pid, { cols: 93, rows: 33 })
await box.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit 0\n'))
await terminal.wait()
told.terminal = shown.includes('33 93')

// Code
const heard = []
const run = await box.runCode('print("out")\n1 + 1', { onStdout: (message) => heard.push(message.line) })
told.code = [run.text, run.logs.stdout, heard]
told.error = (await box.runCode('1 / 0')).error.name
const drawn = await box.runCode('import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\nplt.show()')
told.chart = [drawn.results[0].chart.type, drawn.results[0].chart.elements[0].points]
told.frame = (await box.runCode('import pandas\npandas.DataFrame({"n": [1, 2]})')).results[0].data
const context = await box.createCodeContext({ cwd: '/tmp' })
await box.runCode('apart = 1', { context })
await box.restartCodeContext(context)
const forgotten = (await box.runCode('apart', { context })).error.name
const isListed = (await box.listCodeContexts()).some((item) => item.id === context.id)
await box.removeCodeContext(context)
told.contexts = [context.cwd, forgotten, isListed, await nameOf(box.runCode('1', { context }))]
told.bash = (await box.runCode('echo from bash', { language: 'bash' })).logs.stdout
told.language = await nameOf(box.runCode('1', { language: 'abap' }))
const endless = await nameOf(box.runCode('while True: pass', { timeoutMs: 500 }))
told.interrupted = [endless, (await box.runCode('"free"')).text]

// Pauses
await box.runCode('x = 41')
told.paused = [await box.pause(), await box.pause(), await box.isRunning()]
const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 100_000 })
told.connected = [await again.isRunning(), (await again.runCode('x')).text]

// Forks
const forks = await again.fork({ count: 2, timeoutMs: 60_000 })
const forked = await Promise.all(forks.map((fork, number) => fork.runCode(`x += ${number}; x`)))
told.forked = [forked.map((done) => done.text), (await again.runCode('x')).text]
await Promise.all(forks.map((fork) => fork.kill()))

// Refusals, and the end
told.badKey = await nameOf(Sandbox.create({ apiKey: 'e2b_00' }))
told.templates = [await Template.exists('base'), await Template.exists('no-such-template')]
told.unknownTemplate = await Sandbox.create('no-such-template').catch((error) => error.message)
const snapshot = await box.createSnapshot({ name: 'from-js' })
const restored = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 60_000 })
const listed = (await Sandbox.listSnapshots({ name: 'from-js' }).nextItems()).map((one) => one.snapshotId)
told.snapshot = [
  (await restored.runCode('x + 1')).text,
  listed.length === 1 && listed[0] === snapshot.snapshotId,
  await Sandbox.deleteSnapshot(snapshot.snapshotId),
  await Sandbox.deleteSnapshot(snapshot.snapshotId),
]
await restored.kill()
const volume = await Volume.create('from-js')
await volume.writeFile('in/a', 'outside')
const holder = await Sandbox.create({ timeoutMs: 60_000, volumeMounts: { '/mnt/data/js': volume } })
told.volume = [await holder.files.read('/mnt/data/js/in/a')]
await holder.files.write('/mnt/data/js/b', 'inside')
await holder.kill()
told.volume.push(await volume.readFile('b'), (await volume.list('/')).map((one) => one.path))
told.volume.push(await Volume.destroy(volume.volumeId), await Volume.destroy(volume.volumeId))
told.ended = [await box.kill(), await box.isRunning()]
told.dead = [await nameOf(box.commands.run('true')), await nameOf(box.runCode('1')), await nameOf(box.getInfo())]
console.log(JSON.stringify(told))
process.exit(0)
