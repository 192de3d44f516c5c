// What a program does that builds a template by E2B's JavaScript SDK; test_builder.py looks at what it tells.
import { Sandbox, Template, waitForFile } from 'e2b'

const [image, context] = process.argv.slice(2)
const logs = []
const template = Template({ fileContextPath: context })
  .fromImage(image)
  .setEnvs({ GREETING: 'hello' })
  .copy('app', 'app')
  .setWorkdir('/home/user/app')
  .runCmd('echo "$GREETING $(id -un)" > said')
  .setStartCmd('cat said > /tmp/up; sleep 1000', waitForFile('/tmp/up'))
const built = await Template.build(template, 'by-js:v1', { onBuildLogs: (entry) => logs.push(entry.message) })
const box = await Sandbox.create('by-js:v1')
const told = {
  name: built.name,
  exists: [await Template.exists('by-js'), await Template.exists('by-js:v2')],
  read: [await box.files.read('/tmp/up'), await box.files.read('/home/user/app/inner/deep.txt')],
  heard: logs.some((line) => line.includes('RUN echo "$GREETING')),
}
await box.kill()
await Template.build(Template().fromImage(image).runCmd('exit 7'), 'by-js-failing').catch((error) => {
  told.failed = [error.name, error.message.includes('ended with 7')]
})
console.log(JSON.stringify(told))
