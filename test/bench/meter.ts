import type { Meter } from '../../src/meter/Meter'
import { presets } from '../../src/meter/Preset'
import { createReader } from '../../src/meter/Reader'

// What reading the usage of a stream costs, against passing its chunks on. Each number is the
// best of many runs, since neighbours only add to it; the ratio can be compared between machines.

const rate = { priceScaled: 1_000_000_000_000n, per: 1_000_000 }
const rates = { input: rate, output: rate }
const limits = { modelsOnly: false, maxOutput: undefined, maxChoices: undefined }
const meterOf = (preset: 'openai' | 'anthropic' | 'gemini'): Meter => ({
  preset,
  plan: presets[preset],
  priceAtomic: 50_000n,
  baseAtomic: 0n,
  rates,
  models: {},
  missing: 'max',
  timeouts: 'free',
  limits,
})

const bytes = 200_000
const usage = '"usage":{"prompt_tokens":31,"completion_tokens":800}'
const openai = (i: number) =>
  `data: {"id":"chatcmpl-${i}","object":"chat.completion.chunk","created":1763700000,"model":"gpt-5-mini","choices":[{"index":0,"delta":{"content":" word ${i}"},"finish_reason":null}],"usage":null}\n\n`
const anthropic = (i: number) =>
  `event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" word ${i}"}}\n\n`
const gemini = (i: number) =>
  `data: {"candidates":[{"content":{"parts":[{"text":" word ${i}"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":${i},"totalTokenCount":${i + 8}},"modelVersion":"gemini"}\n\n`

const encoder = new TextEncoder()

/** A stream of about 200 kB, one chunk per event as services send it, or in pieces of this size. */
function streamOf(event: (i: number) => string, last: string, piece?: number): Uint8Array[] {
  const events: string[] = []
  for (let i = 0, size = 0; size < bytes; i++) {
    const text = event(i)
    events.push(text)
    size += text.length
  }
  events.push(last)
  if (piece === undefined) return events.map((text) => encoder.encode(text))
  const all = encoder.encode(events.join(''))
  return Array.from({ length: Math.ceil(all.byteLength / piece) }, (_, i) =>
    all.slice(i * piece, (i + 1) * piece),
  )
}

const done = `data: {"choices":[],${usage}}\n\ndata: [DONE]\n\n`
const end =
  'event: message_delta\ndata: {"type":"message_delta","usage":{"input_tokens":9,"output_tokens":800}}\n\n'
const array = { ...headOf('application/json') }
function headOf(type: string) {
  return { status: 200, headers: new Headers({ 'content-type': type }) }
}
const sse = headOf('text/event-stream')

const rows = [
  {
    name: 'openai, an event a chunk',
    meter: meterOf('openai'),
    head: sse,
    chunks: streamOf(openai, done),
  },
  {
    name: 'openai, 16 kB chunks',
    meter: meterOf('openai'),
    head: sse,
    chunks: streamOf(openai, done, 16_384),
  },
  {
    name: 'openai, 64 byte chunks',
    meter: meterOf('openai'),
    head: sse,
    chunks: streamOf(openai, done, 64),
  },
  {
    name: 'anthropic, an event a chunk',
    meter: meterOf('anthropic'),
    head: sse,
    chunks: streamOf(anthropic, end),
  },
  {
    name: 'gemini, usage in every event',
    meter: meterOf('gemini'),
    head: sse,
    chunks: streamOf(gemini, ''),
  },
  {
    name: 'gemini, JSON array',
    meter: meterOf('gemini'),
    head: array,
    chunks: streamOf((i) => (i === 0 ? '[' : ',') + gemini(i).slice(6, -2), ']'),
  },
]

type Source = AsyncIterable<Uint8Array>

async function* through(chunks: readonly Uint8Array[]): AsyncGenerator<Uint8Array> {
  for (const chunk of chunks) yield chunk
}

/** As the gateway does it: one stream pulls from another. */
function passed(source: Source, onChunk: (chunk: Uint8Array) => void): ReadableStream<Uint8Array> {
  const reader = source[Symbol.asyncIterator]()
  return new ReadableStream({
    async pull(controller) {
      const { done, value } = await reader.next()
      if (done || value === undefined) return controller.close()
      onChunk(value)
      controller.enqueue(value)
    },
  })
}

async function drain(chunks: readonly Uint8Array[], onChunk: (chunk: Uint8Array) => void) {
  for await (const _ of passed(through(chunks), onChunk));
}

async function time(run: () => unknown): Promise<number> {
  const samples: number[] = []
  for (let i = 0; i < 300; i++) {
    const before = process.cpuUsage()
    const start = performance.now()
    await run()
    const { user, system } = process.cpuUsage(before)
    samples.push(Math.min(performance.now() - start, (user + system) / 1000))
  }
  return Math.min(...samples)
}

process.stdout.write(
  `${'200 kB'.padEnd(32)}${'meter ms'.padStart(10)}${'pass ms'.padStart(10)}${'both ms'.padStart(10)}${'ratio'.padStart(8)}\n`,
)
for (const { name, meter, head, chunks } of rows) {
  const alone = await time(() => {
    const reader = createReader(meter, head)
    for (const chunk of chunks) reader.add(chunk)
    if (reader.end().kind !== 'used') throw new Error(`${name}: no usage`)
  })
  const plain = await time(() => drain(chunks, () => undefined))
  const both = await time(async () => {
    const reader = createReader(meter, head)
    await drain(chunks, reader.add)
    reader.end()
  })
  const shown = [alone, plain, both].map((ms) => ms.toFixed(2).padStart(10)).join('')
  process.stdout.write(`${name.padEnd(32)}${shown}${(both / plain).toFixed(2).padStart(8)}\n`)
}
