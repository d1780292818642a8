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

/** The upstream of all candidates, in the process of the load. */
export function startModel(): { url: string; stop(): Promise<void> } {
  const text = JSON.stringify(answer)
  const server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    async fetch(request) {
      await request.arrayBuffer()
      return new Response(text, { headers: { 'content-type': 'application/json' } })
    },
  })
  return { url: `http://127.0.0.1:${server.port}`, stop: () => server.stop(true) }
}

export type ModelAnswer = typeof answer
