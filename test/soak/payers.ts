import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import {
  ask,
  challengeHash,
  payMpp,
  payMppPermit2,
  payX402,
  wholeChallenges,
} from '../harness/buyer'
import type { Scheme } from '../harness/shop'
import { prices } from './configuration'
import type { Purchase, Received } from './purchase'
import type { Random } from './random'
import type { Payer, Setup } from './setup'
import { byUseShare, fetchByUse, membersOf, planByUse, settledOf, signByUse } from './upto-payers'

export type Payers = {
  purchases: readonly Purchase[]
  start(): void
  /** Starts nothing new; resolves when all purchases have ended, or after the time limit. */
  finish(limitMs: number): Promise<void>
}

/** Longest wait for one answer, well above the program's own wait, also on a busy machine. */
const answerMaxMs = 90_000
/** All payers that wait for it buy in the same moment. */
const rallyMs = 1_000

type Options = { setup: Setup; url: string; random: Random; pauseMaxMs: number }

/**
 * Honest clients: each signs one credential per request and presents it again, or its token, until
 * it has the answer or a final refusal. They buy alone, several at a time, and all at once.
 */
export function createPayers(options: Options): Payers {
  const { setup, random, pauseMaxMs } = options
  const purchases: Purchase[] = []
  const ending = new AbortController()
  const giveUp = new AbortController()
  const loops: Promise<void>[] = []

  async function live(payer: Payer, own: Random): Promise<void> {
    let count = 0
    while (!ending.signal.aborted) {
      const draw = own.next()
      if (draw < 0.2) await untilRally(ending.signal)
      else await nap(own.between(0, pauseMaxMs), ending.signal)
      if (ending.signal.aborted) return
      const size = draw > 0.8 ? own.between(2, 5) : 1
      const bought = Array.from({ length: size }, () => plan(payer, count++, own, options))
      purchases.push(...bought)
      await Promise.all(bought.map((purchase) => buy(purchase, own, giveUp.signal)))
    }
  }

  return {
    purchases,
    start() {
      for (const payer of setup.payers) loops.push(live(payer, random.fork(`payer ${payer.index}`)))
    },
    async finish(limitMs) {
      ending.abort()
      const timer = setTimeout(() => giveUp.abort(), limitMs)
      await Promise.all(loops)
      clearTimeout(timer)
    },
  }
}

function plan(payer: Payer, count: number, random: Random, { setup, url }: Options): Purchase {
  const site = random.pick(setup.sites)
  const schemes: Scheme[] = ['mpp', 'x402-eip3009']
  if (payer.hasApproved && site.network.chainId === 4663)
    schemes.push('mpp-permit2', 'x402-permit2')
  const serial = `${payer.index}-${count}`
  if (payer.hasApproved && random.chance(byUseShare))
    return planByUse({ payer, site, serial, url }, random)
  const [path, price] = random.pick(Object.entries(prices))
  const posts = random.chance(0.2)
  return {
    serial,
    payer,
    site,
    scheme: random.pick(schemes),
    url: `${url}/m/shop${path}?n=${serial}`,
    init: {
      ...(posts ? { method: 'POST', body: JSON.stringify({ n: serial }) } : {}),
      headers: {
        ...(posts ? { 'content-type': 'application/json' } : {}),
        ...(random.chance(0.2) ? { 'idempotency-key': `key-${serial}` } : {}),
      },
    },
    amountAtomic: BigInt(Math.round(Number(price) * 1e6)),
    nonce: undefined,
    signedAt: undefined,
    said: [],
    received: [],
    redeems: false,
    end: 'open',
  }
}

async function buy(purchase: Purchase, random: Random, giveUp: AbortSignal): Promise<void> {
  let headers: Record<string, string> | undefined
  while (purchase.end === 'open' && !giveUp.aborted) {
    if (headers === undefined) headers = await sign(purchase, random)
    else headers = await show(purchase, headers)
    if (purchase.end === 'open') await nap(random.between(20, 250), giveUp)
  }
}

/** The credential; undefined while none is offered. */
async function sign(
  purchase: Purchase,
  random: Random,
): Promise<Record<string, string> | undefined> {
  const { scheme, site, url, init, payer } = purchase
  const asked = await ask(url, init).catch(() => undefined)
  if (asked?.response.status !== 402) return undefined
  if (scheme === 'upto') {
    const own = await signByUse(purchase, asked.required, random)
    return own && signed(purchase, own.nonce, own.headers)
  }
  if (scheme === 'x402-eip3009' || scheme === 'x402-permit2') {
    const method = scheme === 'x402-permit2' ? 'permit2' : 'eip3009'
    // A header has not always room for all offers.
    const { accepts = asked.required.accepts } = asked.whole
    const isOffered = accepts.some(
      ({ network, extra }) => network === site.id && extra.assetTransferMethod === method,
    )
    if (!isOffered) return undefined
    const nonce = random.bytes32()
    const options = { network: site.id, method, nonce } as const
    const required = { ...asked.required, accepts }
    const signature = await payX402(required, payer.account, options)
    return signed(purchase, nonce, { 'payment-signature': signature })
  }
  // A header has not always room for all methods.
  const challenges = scheme === 'mpp' ? asked.challenges : wholeChallenges(asked)
  const challenge = challenges.find(({ request }) => idOf(request) === site.id)
  if (challenge === undefined) return undefined
  const pay = scheme === 'mpp' ? payMpp : payMppPermit2
  const authorization = await pay(challenge, payer.account)
  return signed(purchase, challengeHash(challenge), { authorization })
}

function signed(purchase: Purchase, nonce: Hex, headers: Record<string, string>) {
  purchase.nonce = nonce
  purchase.signedAt = Date.now()
  return headers
}

function idOf(request: { methodDetails: { chainId: number } }): Network.Id {
  return `eip155:${request.methodDetails.chainId}`
}

/** Sends the request with its payment, and returns the payment for the next attempt. */
async function show(
  purchase: Purchase,
  headers: Record<string, string>,
): Promise<Record<string, string>> {
  const { said } = purchase
  try {
    const shown = await request(purchase, headers)
    if (shown === undefined) return headers
    const { status, answer, settled } = shown
    const at = Date.now()
    const code = String(answer.code ?? '')
    const detail = [answer.reason, answer.detail].filter((part) => part !== undefined).join(': ')
    said.push({ at, status, code, detail })
    if (status === 200 && answer.serial === purchase.serial) {
      purchase.received.push({
        paymentId: String(answer.paymentId),
        call: Number(answer.call),
        at,
        settled,
      })
      purchase.end = 'answered'
      return headers
    }
    const token = tokenOf(answer)
    if (token !== undefined) {
      purchase.redeems = true
      return { 'payment-redeem': token }
    }
    const isTransient = status >= 500 || status === 429 || code === 'payment-in-progress'
    if (!isTransient) purchase.end = 'refused'
  } catch (error) {
    const detail = error instanceof Error ? error.name : 'unknown'
    said.push({ at: Date.now(), status: 0, code: 'no-answer', detail })
  }
  return headers
}

type Shown = { status: number; answer: Record<string, unknown>; settled?: Received['settled'] }

/** Undefined when the buyer has left. */
async function request(
  purchase: Purchase,
  headers: Record<string, string>,
): Promise<Shown | undefined> {
  const { init, url, byUse, said } = purchase
  if (byUse === undefined) {
    const response = await fetch(url, {
      ...init,
      headers: { ...init.headers, ...headers },
      signal: AbortSignal.timeout(answerMaxMs),
    })
    return { status: response.status, answer: JSON.parse(await response.text()) }
  }
  const shown = await fetchByUse(purchase, byUse, headers, answerMaxMs)
  if (shown.kind === 'left') {
    const detail = `${shown.bytes} bytes`
    said.push({ at: Date.now(), status: 0, code: 'left', detail })
    // A buyer with nothing may have been charged, and comes back.
    if (shown.bytes > 0 && byUse.isStream) purchase.end = 'left'
    return undefined
  }
  const { response, text } = shown
  return { status: response.status, answer: membersOf(text), settled: settledOf(response) }
}

function tokenOf({ redeem }: Record<string, unknown>): string | undefined {
  if (typeof redeem !== 'object' || redeem === null || !('token' in redeem)) return undefined
  return typeof redeem.token === 'string' ? redeem.token : undefined
}

/** Resolves after the time, or at once when the signal fires. */
export function nap(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve()
    const done = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done)
  })
}

function untilRally(signal: AbortSignal): Promise<void> {
  return nap(rallyMs - (Date.now() % rallyMs), signal)
}
