// A model that runs Python: OpenAI's SDK asks the model, a fumehood server runs what it writes, pictures included.
//
//   FUMEHOOD_URL, FUMEHOOD_API_KEY     the server and a key of it (`fumehood serve` says both)
//   OPENAI_API_KEY, OPENAI_BASE_URL    the model's; any server with the Responses API will do
//
//   npm install && npm start -- penguins.csv 'Which species is the heaviest?'
import { readFile } from 'node:fs/promises'
import { basename } from 'node:path'
import OpenAI from 'openai'
import type { FunctionTool, ResponseInput, ResponseInputContent } from 'openai/resources/responses/responses'

const SERVER = process.env.FUMEHOOD_URL ?? 'http://127.0.0.1:8765'
const MODEL = process.env.OPENAI_MODEL ?? 'gpt-5'
const MAX_ROUNDS = 10
const MAX_CHARS = 20_000
const HOW = `You analyse files with Python. Variables stay from call to call; the files are in /mnt/data; there is no network.`
const RUN_PYTHON: FunctionTool = {
  type: 'function',
  name: 'run_code',
  description: 'Runs Python in a sandbox that remembers: shows what is printed, the last value, figures, and errors.',
  parameters: {
    type: 'object',
    properties: { code: { type: 'string' } },
    required: ['code'],
    additionalProperties: false,
  },
  strict: true,
}

type Result = { text: string | null; png?: string | null }
type Execution = { logs: { entries: { text: string }[] }; results: Result[]; error: { traceback: string } | null }

/** Asks the server; a refusal says what was wrong and how to go on. */
async function ask<Answer>(method: string, path: string, given?: object): Promise<Answer> {
  const body = given instanceof Blob ? given : given && new Blob([JSON.stringify(given)], { type: 'application/json' })
  const headers = { Authorization: `Bearer ${process.env.FUMEHOOD_API_KEY}` }
  const answer = await fetch(`${SERVER}/v1/sandboxes${path}`, { method, headers, body })
  const text = await answer.text()
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`)
  return (text ? JSON.parse(text) : null) as Answer
}

/** Runs one call of the model, and gives what it reads of it. Code that fails is an answer like any other. */
async function run(sandbox: string, args: string): Promise<ResponseInputContent[]> {
  const { code } = JSON.parse(args) as { code: string }
  const { logs, results, error } = await ask<Execution>('POST', `/${sandbox}/executions`, { code })
  const parts = [...logs.entries.map((entry) => entry.text), ...results.map((result) => result.text ?? '')]
  if (error) parts.push(error.traceback)
  const text = parts.join('\n').slice(0, MAX_CHARS) || '(no output)'
  const pictures = results.flatMap(({ png }): ResponseInputContent[] =>
    png ? [{ type: 'input_image', detail: 'auto', image_url: `data:image/png;base64,${png}` }] : [],
  )
  return [{ type: 'input_text', text }, ...pictures]
}

/** Lets the model look and compute until it has an answer. */
async function converse(sandbox: string, question: string): Promise<string> {
  const openai = new OpenAI()
  const input: ResponseInput = [{ role: 'user', content: question }]

  for (let round = 0; round < MAX_ROUNDS; round++) {
    const reply = await openai.responses.create({ model: MODEL, instructions: HOW, tools: [RUN_PYTHON], input })
    const calls = reply.output.filter((item) => item.type === 'function_call')
    if (calls.length === 0) return reply.output_text
    input.push(...reply.output)

    for (const call of calls) {
      input.push({ type: 'function_call_output', call_id: call.call_id, output: await run(sandbox, call.arguments) })
    }
  }

  throw new Error(`no answer within ${MAX_ROUNDS} rounds`)
}

const [file, question] = process.argv.slice(2)
if (!file || !question) throw new Error('usage: analyst FILE QUESTION')
const { id } = await ask<{ id: string }>('POST', '', { idle_timeout_seconds: 600 })

try {
  const path = `/mnt/data/${basename(file)}`
  await ask('PUT', `/${id}/files/content?path=${encodeURIComponent(path)}`, new Blob([await readFile(file)]))
  console.log(await converse(id, `${path}: ${question}`))
} finally {
  await ask('DELETE', `/${id}`)
}
