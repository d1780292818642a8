import { createTally } from '../../src/books/tally'
import { account } from '../../src/demo/accounts'
import { createRegistry } from '../../src/http/metrics'
import { createReceipts } from '../../src/paywall/answer/receipts'
import { type Answers, createAnswerStore } from '../../src/paywall/answer/store'
import { extract } from '../../src/paywall/credential'
import type { GatewaySale } from '../../src/paywall/GatewaySale'
import type { Item } from '../../src/paywall/offer/Item'
import { createQuoter } from '../../src/paywall/offer/quote'
import { createPaywall } from '../../src/paywall/paywall'
import * as Problem from '../../src/protocol/Problem'
import type { Settlement } from '../../src/settlement/settlement'
import { payX402, type Required } from './buyer'
import { payee, type Shop } from './shop'

/**
 * A paywall whose ledger is far away: every read answers some turns later, and a test can hold the
 * next answer of a kind while other requests continue. Settlement, chain and database are the shop's.
 */

/** What the upstream answers to a forward. */
export type Made = Awaited<ReturnType<GatewaySale['fulfil']>>

/** An answer of the ledger that is held. */
export type Held = {
  /** Resolves when there is one: it was read and has not been given to the caller. */
  arrives: Promise<void>
  /** Gives it to the caller. */
  open(): void
}

export type Answered = { status: number; code?: string; text?: string; isReplay: boolean }

const networkId = 'eip155:8453'
const secret = new Uint8Array(32).fill(7)

/** `isOther`: it claims money apart from others of this process, as another gateway does. */
export async function startLatePaywall(shop: Shop, { isOther = false } = {}) {
  const network = shop.config.networks.find(({ id }) => id === networkId)
  if (network === undefined) throw new Error(`no ${networkId}`)
  const gates = createGates()
  const answers = await createAnswerStore(shop.ledger.answers)
  const settlement = lateSettlement(shop.app.settlement, gates)
  const item = itemOf({ network, payTo: payee, amountAtomic: 5_000n })
  const common = { challengeSecrets: [secret], realm: 'localhost', receiptKey: secret }
  const quoter = createQuoter({
    ...common,
    tally: createTally(),
    whyNot: () => undefined,
    channelOf: () => undefined,
    facilitators: () => [],
    takesApprovals: false,
    gasSponsor: { url: '', networks: [] },
    now: Date.now,
    salt: () => btoa('abcdefghijklmno'),
  })
  const late = {
    hold: gates.hold,
    /** Answers of a kind that have passed. */
    passed: gates.passed,
    /** Forwards to the upstream. */
    forwards: 0,
    upstream: (): Made | Promise<Made> => answerOf('goods'),
    paywall: createPaywall({
      ...common,
      receipts: createReceipts(secret, Date.now),
      settlement,
      claims: isOther ? new Map() : shop.app.claims,
      answers: lateAnswers(answers, gates),
      entitlements: shop.ledger.entitlements,
      meter: createRegistry(),
      trialsPerMinute: () => 60,
      quoter,
      tally: createTally(),
      channelOf: () => undefined,
      sponsor: undefined,
      settleWaitMs: () => 120_000,
      heldMaxBytes: 1024,
      now: Date.now,
      monotonic: () => performance.now(),
      log: () => undefined,
    }),
    /** Headers of a new credential of the demo account. */
    async sign(): Promise<Record<string, string>> {
      const response = late.paywall.ask(
        { item, url: item.resource.url, requestId: 'ask', clientKind: 'other' },
        {},
      )
      const required: Required = JSON.parse(atob(response.headers.get('payment-required') ?? ''))
      const options = { network: networkId, method: 'eip3009' } as const
      return { 'payment-signature': await payX402(required, account(1).local(), options) }
    },
    /** The response to a request, or the problem. */
    serve: (headers: Record<string, string>): Promise<Response> =>
      late.paywall.serve(
        requestOf(item, new Headers(headers), async () => {
          late.forwards++
          return late.upstream()
        }),
      ),
    async buy(headers: Record<string, string>): Promise<Answered> {
      try {
        const response = await late.serve(headers)
        const isReplay = response.headers.get('idempotency-replayed') === 'true'
        const { status } = response
        const text = await response.text()
        return status === 402
          ? { status, code: JSON.parse(text).code, isReplay }
          : { status, text, isReplay }
      } catch (error) {
        if (!(error instanceof Problem.ProblemError)) throw error
        return { status: error.status, code: error.code, isReplay: false }
      }
    },
  }
  return late
}

function requestOf(item: Item, headers: Headers, fulfil: GatewaySale['fulfil']): GatewaySale {
  return {
    method: 'GET',
    url: item.resource.url,
    digest: undefined,
    purpose: {
      product: 'gateway',
      merchant: item.merchant,
      route: item.route,
      resource: item.resource.url,
    },
    requestId: 'request',
    clientKind: 'other',
    timeoutMs: 30_000,
    signal: new AbortController().signal,
    fulfil,
    item,
    path: '/m/late/item',
    search: '',
    headers,
    presented: extract(headers),
    client: '192.0.2.1',
    body: new Uint8Array(),
    selecting: () => '',
    invalidParams: [],
    unavailable: () => undefined,
    reserve: () => () => undefined,
    prepare: () => undefined,
  }
}

/** A whole answer, or one that comes as a stream. */
export function answerOf(body: string, isStream = false): Made {
  const bytes = new TextEncoder().encode(body)
  const stream = () =>
    new ReadableStream<Uint8Array>({
      start(controller) {
        controller.enqueue(bytes)
        controller.close()
      },
    })
  const made = { delivered: true, status: 200, headers: new Headers() } as const
  return { ...made, body: isStream ? stream() : bytes }
}

function itemOf(offer: Item['offers'][number]): Item {
  const url = 'http://localhost/m/late/item'
  return {
    id: 'late:GET /item',
    merchant: 'late',
    route: '/item',
    method: 'GET',
    resource: { url, description: 'Late', mimeType: 'text/plain' },
    offers: [offer],
    mppOffers: [offer],
    extensions: [],
  }
}

type Gates = ReturnType<typeof createGates>

function createGates() {
  const waiting = new Map<string, { arrive(): void; opened: Promise<void> }>()
  const counts = new Map<string, number>()
  return {
    passed: (kind: string): number => counts.get(kind) ?? 0,
    /** Holds the next answer of this kind. */
    hold(kind: string): Held {
      const [arrival, opening] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      waiting.set(kind, { arrive: arrival.resolve, opened: opening.promise })
      return { arrives: arrival.promise, open: opening.resolve }
    },
    async pass(kind: string): Promise<void> {
      await turn()
      const gate = waiting.get(kind)
      waiting.delete(kind)
      gate?.arrive()
      await gate?.opened
      counts.set(kind, (counts.get(kind) ?? 0) + 1)
    },
  }
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

/** The same function, whose answers pass the gate of a kind. */
function behind<A extends unknown[], T>(
  gates: Gates,
  kind: string,
  ask: (...args: A) => Promise<T>,
): (...args: A) => Promise<T> {
  return async (...args) => {
    await turn()
    const answer = await ask(...args)
    await gates.pass(kind)
    return answer
  }
}

function lateSettlement(real: Settlement, gates: Gates): Settlement {
  return {
    ...real,
    find: behind(gates, 'find', real.find),
    findById: behind(gates, 'findById', real.findById),
    findByIdempotencyKey: behind(gates, 'findByIdempotencyKey', real.findByIdempotencyKey),
    findByRedeemToken: behind(gates, 'findByRedeemToken', real.findByRedeemToken),
    async markAnswered(id) {
      await gates.pass('markAnswered')
      return real.markAnswered(id)
    },
  }
}

function lateAnswers(real: Answers, gates: Gates): Answers {
  return {
    find: behind(gates, 'answers.find', real.find),
    store: behind(gates, 'answers.store', real.store),
    reserve: behind(gates, 'answers.reserve', real.reserve),
  }
}
