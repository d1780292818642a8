import type { Hex, LocalAccount } from 'viem'
import { ask, payX402 } from '../harness/buyer'
import { signIn, signInOf } from '../harness/siwe'
import { again, clubPrices, pass, trial } from './configuration'
import { nap } from './payers'
import type { Random } from './random'
import type { Setup, Site, Wallet } from './setup'

/**
 * Buyers who come back: they buy passes and use them, fetch again what they have paid for, and try
 * with fresh wallets. They keep their own books of each sign-in, by its nonce. Operators refund some
 * payments meanwhile.
 */

/** A payment of such a buyer. Times are unix ms. */
export type Sale = {
  /** The start tells the audits apart. */
  serial: `r${string}`
  kind: 'pass' | 'again' | 'lost'
  wallet: Wallet
  site: Site
  url: string
  amountAtomic: bigint
  nonce: Hex | undefined
  signedAt: number | undefined
  said: Said[]
  end: 'open' | 'answered' | 'refused'
  answeredAt: number | undefined
  /** The token of its answer, which fetches it again. */
  token: string | undefined
  /** A refund may have been written since. */
  refundAt: number | undefined
}

export type Said = { at: number; status: number; code: string; reason: string }

/** A request that signs in, or shows the token of a payment. */
export type Use = {
  serial: string
  wallet: Wallet
  /** The route that the entitlement is for. */
  route: keyof typeof capacities
  /** Of re-access the payment. */
  sale: Sale | undefined
  /** The nonce of the sign-in; undefined for a token. */
  nonce: string | undefined
  sentAt: number
  endedAt: number | undefined
  /** `lost`: the connection broke. */
  result: { kind: 'answered'; entitlement: string } | ({ kind: 'said' } & Said) | { kind: 'lost' }
}

/** What an entitlement of a route is good for. */
export const capacities = {
  pass: pass.requests,
  again: again.max,
  trial: trial.requests,
  pool: trial.requests,
}

export type Returning = {
  sales: readonly Sale[]
  uses: readonly Use[]
  start(): void
  /** Starts nothing new; resolves when all have ended, or after the time limit. */
  finish(limitMs: number): Promise<void>
}

type Options = {
  setup: Setup
  url: string
  random: Random
  pauseMaxMs: number
  /** Asks for a refund of a payment, as an operator does. Never rejects. */
  refund: (sale: Sale) => Promise<void>
}

const answerMaxMs = 90_000
const refundShare = 0.2

export function createReturning(options: Options): Returning {
  const { setup, url, random, pauseMaxMs, refund } = options
  const sales: Sale[] = []
  const uses: Use[] = []
  const ending = new AbortController()
  const giveUp = new AbortController()
  const running: Promise<unknown>[] = []
  let fresh = 0
  let serials = 0

  function plan(kind: Sale['kind'], wallet: Wallet, own: Random): Sale {
    const serial = `r${serials++}` as const
    const path = { pass: '/club/data/pass', again: '/club/again', lost: '/lost/gone' }[kind]
    const sale: Sale = {
      ...{ serial, kind, wallet, site: own.pick(setup.sites) },
      url: `${url}/m${path}?n=${serial}`,
      amountAtomic: BigInt(Math.round(Number(clubPrices[kind]) * 1e6)),
      ...{ nonce: undefined, signedAt: undefined, said: [], end: 'open', answeredAt: undefined },
      ...{ token: undefined, refundAt: undefined },
    }
    sales.push(sale)
    return sale
  }

  /** Presents one credential, then its token or a sign-in, until the answer or a final refusal. */
  async function buy(sale: Sale, own: Random): Promise<void> {
    let shown: Shown | undefined
    while (sale.end === 'open' && !giveUp.signal.aborted) {
      if (shown === undefined) shown = await sign(sale, own)
      else shown = await show(sale, shown, own)
      if (sale.end === 'open') await nap(own.between(20, 250), giveUp.signal)
    }
  }

  /** Sends what was signed for a sale. A sign-in is in the books as each other one. */
  async function show(sale: Sale, shown: Shown, own: Random): Promise<Shown> {
    const { url: target, serial, kind, wallet } = sale
    const one =
      shown.nonce === undefined ? undefined : open({ wallet, route: 'again', sale }, shown)
    const answer = await fetchAnswer(target, shown.headers).catch(() => undefined)
    if (one) end(one, answer, serial)
    if (answer === undefined) {
      sale.said.push({ at: Date.now(), status: 0, code: 'no-answer', reason: '' })
      return one ? ((await signFor(target, wallet.account, own)) ?? shown) : shown
    }
    const { status, headers, body } = answer
    sale.said.push(saidBy(answer))
    const isAnswer = kind === 'pass' ? typeof body.pass === 'object' : body.serial === serial
    if (status === 200 && isAnswer) {
      Object.assign(sale, { end: 'answered', answeredAt: Date.now() })
      sale.token = headers.get('payment-redeem') ?? undefined
      return shown
    }
    const token = tokenOf(body)
    if (token !== undefined && (kind !== 'again' || own.chance(0.5))) return redeeming(token)
    const isTransient =
      status >= 500 || status === 429 || String(body.code) === 'payment-in-progress'
    const isSpent = one !== undefined && body.reason === 'invalid_siwx_nonce'
    // A sign-in continues a payment as its token does.
    if (token !== undefined || (one && (isTransient || isSpent))) {
      const before = token === undefined ? shown : redeeming(token)
      return (await signFor(target, wallet.account, own)) ?? before
    }
    if (!isTransient) sale.end = 'refused'
    return shown
  }

  function open(
    of: Pick<Use, 'wallet' | 'route' | 'sale'>,
    { nonce }: Shown,
    serial?: string,
  ): Use {
    const one: Use = {
      ...{ ...of, serial: serial ?? of.sale?.serial ?? '', nonce, sentAt: Date.now() },
      ...{ endedAt: undefined, result: { kind: 'lost' } },
    }
    uses.push(one)
    return one
  }

  async function use(
    of: Pick<Use, 'wallet' | 'route' | 'sale'>,
    own: Random,
  ): Promise<Use | undefined> {
    const { wallet, route, sale } = of
    const serial = sale?.serial ?? `r${serials++}`
    const path = route === 'pass' ? '/club/data' : `/club/${route}`
    const target = sale?.url ?? `${url}/m${path}?n=${serial}`
    const token = sale?.token !== undefined && own.chance(0.5) ? sale.token : undefined
    const shown =
      token === undefined ? await signFor(target, wallet.account, own) : redeeming(token)
    if (shown === undefined) return undefined
    const one = open(of, shown, serial)
    end(one, await fetchAnswer(target, shown.headers).catch(() => undefined), serial)
    return one
  }

  /** Uses what the wallet has, alone or several at once, until nothing is left. */
  async function useUp(of: Pick<Use, 'wallet' | 'route' | 'sale'>, own: Random): Promise<void> {
    let refusals = 0
    while (refusals < 2 && !ending.signal.aborted) {
      await nap(own.between(0, pauseMaxMs), ending.signal)
      const count = own.chance(0.3) ? own.between(2, 4) : 1
      const all = await Promise.all(Array.from({ length: count }, () => use(of, own)))
      if (all.some((each) => each?.result.kind === 'said' && each.result.code === 'not-entitled'))
        refusals++
      if (all.some((each) => each?.result.kind === 'said' && each.result.status === 410)) refusals++
    }
  }

  const lives: Record<Wallet['role'], (wallet: Wallet, own: Random) => Promise<void>> = {
    async pass(wallet, own) {
      const sale = plan('pass', wallet, own)
      await buy(sale, own)
      if (own.chance(refundShare))
        running.push(nap(own.between(0, 3_000), ending.signal).then(() => refund(sale)))
      await useUp({ wallet, route: 'pass', sale: undefined }, own)
    },
    async again(wallet, own) {
      const sale = plan('again', wallet, own)
      await buy(sale, own)
      if (own.chance(refundShare))
        running.push(nap(own.between(0, 2_000), ending.signal).then(() => refund(sale)))
      if (sale.end === 'answered') await useUp({ wallet, route: 'again', sale }, own)
    },
    async lost(wallet, own) {
      await buy(plan('lost', wallet, own), own)
      await nap(own.between(500, 3_000), ending.signal)
    },
    async trial(_, own) {
      const wallet = setup.fresh[fresh++]
      if (wallet === undefined) return nap(60_000, ending.signal)
      await useUp({ wallet, route: own.chance(0.7) ? 'trial' : 'pool', sale: undefined }, own)
    },
  }

  async function live(wallet: Wallet, own: Random): Promise<void> {
    while (!ending.signal.aborted) {
      await nap(own.between(0, pauseMaxMs), ending.signal)
      if (!ending.signal.aborted) await lives[wallet.role](wallet, own)
    }
  }

  return {
    ...{ sales, uses },
    start() {
      for (const wallet of setup.returning)
        running.push(live(wallet, random.fork(`returning ${wallet.index}`)))
    },
    async finish(limitMs) {
      ending.abort()
      const timer = setTimeout(() => giveUp.abort(), limitMs)
      for (let count = -1; count < running.length; ) {
        count = running.length
        await Promise.all(running)
      }
      clearTimeout(timer)
    },
  }
}

/** What a request shows; the nonce of a sign-in. */
type Shown = { headers: Record<string, string>; nonce: string | undefined }

const redeeming = (token: string): Shown => ({
  ...{ headers: { 'payment-redeem': token }, nonce: undefined },
})

/** The credential; undefined while none is offered. */
async function sign(sale: Sale, random: Random): Promise<Shown | undefined> {
  const { url, site, wallet } = sale
  const asked = await ask(url).catch(() => undefined)
  // A header has not always room for all offers.
  const { accepts = asked?.required.accepts ?? [] } = asked?.whole ?? {}
  const isOffered = accepts.some(
    ({ network, extra }) => network === site.id && extra.assetTransferMethod === 'eip3009',
  )
  if (asked?.response.status !== 402 || !isOffered) return undefined
  const nonce = random.bytes32()
  const terms = { network: site.id, method: 'eip3009', nonce } as const
  const required = { ...asked.required, accepts }
  const signature = await payX402(required, wallet.account, terms)
  Object.assign(sale, { nonce, signedAt: Date.now() })
  return { headers: { 'payment-signature': signature }, nonce: undefined }
}

/** A sign-in for the request; undefined while none is offered. */
async function signFor(
  url: string,
  account: LocalAccount,
  random: Random,
): Promise<Shown | undefined> {
  const asked = await ask(url).catch(() => undefined)
  const offer = asked?.response.status === 402 ? signInOf(asked) : undefined
  if (asked === undefined || offer === undefined) return undefined
  const { chainId } = random.pick(offer.supportedChains)
  const headers = await signIn(asked, account, { signed: { chainId } })
  return { headers, nonce: offer.info.nonce }
}

type Answer = { status: number; headers: Headers; body: Record<string, unknown> }

/** Rejects when the connection broke. */
async function fetchAnswer(url: string, headers: Record<string, string>): Promise<Answer> {
  const response = await fetch(url, { headers, signal: AbortSignal.timeout(answerMaxMs) })
  const body = JSON.parse(await response.text()) as Record<string, unknown>
  return { status: response.status, headers: response.headers, body }
}

function saidBy({ status, body }: Answer): Said {
  return {
    at: Date.now(),
    status,
    code: String(body.code ?? ''),
    reason: String(body.reason ?? ''),
  }
}

function end(one: Use, answer: Answer | undefined, serial: string): void {
  one.endedAt = Date.now()
  if (answer === undefined) return
  const isWhole = answer.status === 200 && answer.body.serial === serial
  one.result = isWhole
    ? { kind: 'answered', entitlement: answer.headers.get('payment-entitlement') ?? '' }
    : { kind: 'said', ...saidBy(answer) }
}

function tokenOf({ redeem }: Record<string, unknown>): string | undefined {
  if (typeof redeem !== 'object' || redeem === null || !('token' in redeem)) return undefined
  return typeof redeem.token === 'string' ? redeem.token : undefined
}
