import type { Arrived, Reply } from '../harness/upstream'
import type { Random } from './random'

/**
 * A language model that reports its usage, by an answer or by a stream of events. Its route has a
 * meter, so that what it reports is what its buyer is charged.
 */

/** Path at the upstream, by which requests of metered routes are recognised. */
export const modelPath = '/v1/chat/completions'

/** Atomic amounts of the meter in the configuration of the soak. */
export const meter = { base: 500n, input: 1n, output: 10n }

/** What an answer reports. `missing`: it says nothing. `error`: it says that it failed. */
export type Reported = { input: number; output: number } | 'missing' | 'error'

/** What was sent for a request to the model. */
export type ModelAnswer = {
  isStream: boolean
  reported: Reported
  /** Bytes of the body so far. */
  bytes: number
  /** When its last byte was sent, or it was cut; unix ms. */
  endedAt: number | undefined
}

type Told = { serial: string; paymentId: string; call: number }

/** Answers a request; resolves with whether every byte of a successful answer was sent. */
export async function answerModel(
  request: Arrived,
  reply: Reply,
  { told, answer, random, isFaulty }: Sending,
): Promise<boolean> {
  answer.isStream = JSON.parse(request.body).stream === true
  answer.reported = draw(random)
  const fault = isFaulty ? random.next() : 1
  const end = (isComplete: boolean) => {
    answer.endedAt = Date.now()
    return isComplete
  }
  if (fault < 0.04) {
    if (fault < 0.02) reply.send(500, '{"error":"broken"}')
    else if (fault < 0.03) reply.send(503, '{"error":"busy"}')
    else reply.cut()
    return end(false)
  }
  if (random.chance(0.4)) await Bun.sleep(random.between(1, 200))
  if (answer.isStream) return end(await stream(reply, { told, answer, random, cuts: fault < 0.07 }))
  const body = JSON.stringify({ ...told, ...reportOf(answer.reported) })
  answer.bytes = body.length
  answer.endedAt = Date.now()
  reply.send(200, body)
  return true
}

export type Sending = {
  told: Told
  /** Written while the answer is sent. */
  answer: ModelAnswer
  random: Random
  isFaulty: boolean
}

function draw(random: Random): Reported {
  const chance = random.next()
  if (chance < 0.05) return 'missing'
  if (chance < 0.1) return 'error'
  // Sometimes more than the request allows.
  const output = chance < 0.15 ? random.between(2_000, 5_000) : random.between(1, 900)
  return { input: random.between(1, 60), output }
}

function reportOf(reported: Reported): object {
  if (reported === 'missing') return {}
  if (reported === 'error') return { error: { message: 'the model is overloaded' } }
  const { input, output } = reported
  return { usage: { prompt_tokens: input, completion_tokens: output } }
}

async function stream(
  reply: Reply,
  { told, answer, random, cuts }: Omit<Sending, 'isFaulty'> & { cuts: boolean },
): Promise<boolean> {
  const events = random.between(1, 12)
  const cutAt = cuts ? random.between(0, events) : undefined
  const send = (text: string) => {
    const chunk = `data: ${text}\n\n`
    answer.bytes += chunk.length
    reply.chunk(chunk)
  }
  reply.head(200, { 'content-type': 'text/event-stream' })
  for (let event = 0; event <= events; event++) {
    if (event === cutAt) {
      reply.cut()
      return false
    }
    send(JSON.stringify({ ...told, choices: [{ delta: { content: ` word ${event}` } }] }))
    if (random.chance(0.6)) await Bun.sleep(random.between(1, 80))
  }
  if (answer.reported !== 'missing')
    send(JSON.stringify({ choices: [], ...reportOf(answer.reported) }))
  send('[DONE]')
  reply.end()
  return true
}
