import { startScripted } from '../harness/upstream'
import { answerModel, type ModelAnswer, modelPath } from './model'
import type { Random } from './random'

/** One request that reached the upstream. Times are unix ms. */
export type Call = {
  /** The gateway's `Idempotency-Key`. */
  paymentId: string
  /** Of the purchase, from the query. */
  serial: string
  at: number
  /** `complete`: all bytes of a successful answer were written. */
  end: 'in progress' | 'complete' | 'failed'
  /** Of a request to the model. */
  model?: ModelAnswer
}

/** A request arrived; a successful answer was sent, or one of the model; a failure was sent. */
export type Moment = 'call' | 'answer' | 'model' | 'failure'

export type Upstream = {
  url: URL
  calls: readonly Call[]
  /** Resolves at the next moment of the kind. */
  next(moment: Moment): Promise<void>
  /** From now on every answer is successful. */
  behave(): void
  stop(): void
}

/** Above the merchant's `timeout_ms`. */
const hangMs = 2_500

/** Answers the requests; sometimes late, sometimes with a failure, sometimes never. */
export async function startUpstream(random: Random): Promise<Upstream> {
  const scripted = await startScripted()
  const calls: Call[] = []
  const waiting: Record<Moment, (() => void)[]> = { call: [], answer: [], model: [], failure: [] }
  const tell = (moment: Moment) => {
    for (const resolve of waiting[moment].splice(0)) resolve()
  }
  let behaves = false
  scripted.script = async (request, reply) => {
    const paymentId = request.headers['idempotency-key'] ?? ''
    const serial = new URL(request.target, 'http://localhost').searchParams.get('n') ?? ''
    const call: Call = { paymentId, serial, at: Date.now(), end: 'in progress' }
    calls.push(call)
    tell('call')
    if (request.target.startsWith(modelPath)) {
      const answer: ModelAnswer = {
        isStream: false,
        reported: 'missing',
        bytes: 0,
        endedAt: undefined,
      }
      call.model = answer
      const told = { serial, paymentId, call: calls.length }
      const isComplete = await answerModel(request, reply, {
        told,
        answer,
        random,
        isFaulty: !behaves,
      })
      call.end = isComplete ? 'complete' : 'failed'
      tell(isComplete ? 'model' : 'failure')
      return
    }
    const draw = behaves ? 1 : random.next()
    if (draw < 0.06) {
      call.end = 'failed'
      if (draw < 0.02) reply.send(500, '{"error":"broken"}')
      else if (draw < 0.035) reply.send(503, '{"error":"busy"}')
      else if (draw < 0.055) reply.cut()
      else await Bun.sleep(hangMs).then(reply.cut)
      tell('failure')
      return
    }
    if (random.chance(0.2)) await Bun.sleep(random.between(1, 150))
    call.end = 'complete'
    reply.send(200, JSON.stringify({ serial, paymentId, call: calls.length }))
    tell('answer')
  }
  return {
    url: scripted.url,
    calls,
    next: (moment) => new Promise((resolve) => void waiting[moment].push(resolve)),
    behave() {
      behaves = true
    },
    stop: scripted.stop,
  }
}
