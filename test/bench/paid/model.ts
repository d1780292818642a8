import { networkId } from './network'

/** What is bought by use: an answer of a language model, which reports its usage. */

export const modelPath = '/m/model/chat'

export const modelRequest = {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({
    model: 'm',
    max_tokens: 1_000,
    messages: [{ role: 'user', content: 'Why is the sky blue?' }],
  }),
}

/** `paced`: one event at once, and the end later, so that the rest does not disturb the first byte. */
export type Length = 'short' | 'large' | 'paced'

/** The same for a stream of one event, or of about 200 kB. All cost at most the same. */
export function streamRequest(length: Length) {
  const messages = [{ role: 'user', content: length }]
  const body = JSON.stringify({ model: 'm', max_tokens: 1_000, stream: true, messages })
  return { ...modelRequest, body }
}

/** Atomic amounts: of an answer, of a token that was read, of one that was written. */
const prices = { base: 500, input: 1, output: 10 }

const answer = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  model: 'm',
  choices: [{ index: 0, message: { role: 'assistant', content: 'word '.repeat(100) } }],
  usage: { prompt_tokens: 31, completion_tokens: 800, total_tokens: 831 },
}

/** What the reference stack settles for an answer; the gateway's meter counts the same. */
export function costOf({ usage }: typeof answer): number {
  const { base, input, output } = prices
  return base + usage.prompt_tokens * input + usage.completion_tokens * output
}

/** Prices per million tokens in USD are atomic amounts per token. */
export const modelMerchant = `
[[merchants]]
slug = "model"
upstream = "https://model.example.com"
allow_private = true
concurrency_max = 512
payer_credit = "1000"
losses_per_day = "100000"
new_streams = "passed"
networks = ["${networkId}"]
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "0.05"
upstream_path = "/v1/chat/completions"
[merchants.routes.meter]
preset = "openai"
base = "0.0005"
units = [
  { name = "input", price = "${prices.input}" },
  { name = "output", price = "${prices.output}" },
]
`

export type Model = {
  url: string
  stop(): Promise<void>
}

/** The upstream of all candidates. */
export function startModel(): Model {
  const text = JSON.stringify(answer)
  const server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    async fetch(request) {
      const asked = await request.text()
      if (asked.includes('"stream":true')) return eventsOf(asked)
      return new Response(text, { headers: { 'content-type': 'application/json' } })
    },
  })
  return {
    url: `http://127.0.0.1:${server.port}`,
    stop: () => server.stop(true),
  }
}

/** Events, one a chunk, and the usage at their end. */
function eventsOf(asked: string): Response {
  const bytes = asked.includes('"large"') ? 200_000 : 1
  const isPaced = asked.includes('"paced"')
  const encoder = new TextEncoder()
  const event = (member: object) =>
    encoder.encode(
      `data: ${JSON.stringify({ id: 'chatcmpl-1', object: 'chat.completion.chunk', model: 'm', ...member })}\n\n`,
    )
  const word = event({ choices: [{ index: 0, delta: { content: ' word' }, finish_reason: null }] })
  let sent = 0
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      if (sent < bytes) {
        sent += word.byteLength
        return controller.enqueue(word)
      }
      if (isPaced) await Bun.sleep(pauseMs)
      controller.enqueue(event({ choices: [], usage: answer.usage }))
      controller.enqueue(encoder.encode('data: [DONE]\n\n'))
      controller.close()
    },
  })
  return new Response(body, { headers: { 'content-type': 'text/event-stream' } })
}

/** Longer than a first byte takes to the buyer. */
const pauseMs = 40

export type ModelAnswer = typeof answer
