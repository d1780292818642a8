import { type Arrived, type Reply, startScripted } from '../harness/upstream'
import { answerModel, type ModelAnswer, modelPath } from './model'
import type { Random } from './random'

/** One request that reached the upstream. Times are unix ms. */
export type Call = {
  /** The gateway's `Idempotency-Key`. */
  paymentId: string
  /** Of the purchase, from the query. */
  serial: string
  at: number
  /** All bytes of the answer were written, or the connection was cut; undefined before. */
  endedAt: number | undefined
  /** Which of `urls` was asked: each gateway has its own. */
  gateway: number
  /** `complete`: all bytes of a successful answer were written. */
  end: 'in progress' | 'complete' | 'failed'
  /** Of a request to the model. */
  model?: ModelAnswer
}

/** A request arrived; a successful answer was sent, or one of the model; a failure was sent. */
export type Moment = 'call' | 'answer' | 'model' | 'failure'

export type Upstream = {
  /** The first of `urls`. */
  url: URL
  urls: readonly URL[]
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
export async function startUpstream(random: Random, gateways = 1): Promise<Upstream> {
  const servers = await Promise.all(Array.from({ length: gateways }, startScripted))
  const calls: Call[] = []
  const waiting: Record<Moment, (() => void)[]> = { call: [], answer: [], model: [], failure: [] }
  const tell = (moment: Moment) => {
    for (const resolve of waiting[moment].splice(0)) resolve()
  }
  let behaves = false
  const answer = async (call: Call, request: Arrived, reply: Reply) => {
    const { paymentId, serial } = call
    if (request.target.startsWith(modelPath)) {
      const model: ModelAnswer = {
        isStream: false,
        reported: 'missing',
        bytes: 0,
        endedAt: undefined,
      }
      call.model = model
      const isComplete = await answerModel(request, reply, {
        told: { serial, paymentId, call: calls.length },
        answer: model,
        random,
        isFaulty: !behaves,
      })
      call.end = isComplete ? 'complete' : 'failed'
      tell(isComplete ? 'model' : 'failure')
      return
    }
    // The route of a merchant whose answers are always lost.
    const draw = request.target.startsWith('/gone') ? 0 : behaves ? 1 : random.next()
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
  for (const [gateway, server] of servers.entries()) {
    server.script = async (request, reply) => {
      const call = callOf(request, gateway)
      calls.push(call)
      tell('call')
      // A gateway that waits no longer closes its connection, and may call again.
      await Promise.race([answer(call, request, reply), reply.left])
      call.endedAt = Date.now()
    }
  }
  const urls = servers.map(({ url }) => url)
  const [url] = urls
  if (url === undefined) throw new Error('there is no gateway')
  return {
    ...{ url, urls },
    calls,
    next: (moment) => new Promise((resolve) => void waiting[moment].push(resolve)),
    behave() {
      behaves = true
    },
    stop() {
      for (const server of servers) server.stop()
    },
  }
}

function callOf(request: Arrived, gateway: number): Call {
  return {
    paymentId: request.headers['idempotency-key'] ?? '',
    serial: new URL(request.target, 'http://localhost').searchParams.get('n') ?? '',
    at: Date.now(),
    endedAt: undefined,
    gateway,
    end: 'in progress',
  }
}
