import { dayId, type Entitlement, type EntitlementLedger } from '../../../db/Entitlement'
import type { Payment } from '../../../db/Payment'
import { countFree, type Tally } from '../../books/tally'
import type { WriteEvent } from '../../log'
import * as Problem from '../../protocol/Problem'
import { dayMs } from '../../protocol/Time'
import type { Settlement } from '../../settlement/settlement'
import type { Meter } from '../../settlement/state/metrics'
import {
  answeredBy,
  type Deliveries,
  type Delivery,
  replayed,
  short,
  whyOver,
} from '../answer/delivery'
import type { Answers } from '../answer/store'
import type { Reach } from '../answer/stream'
import { attemptsMax, left } from '../answer/undelivered'
import { createClaim, type RequestClaim } from '../checkout'
import * as Denial from '../Denial'
import type { GatewaySale } from '../GatewaySale'
import { refused, type SignedIn, signIn } from './sign-in'
import { createTrialCheck } from './trial'

/**
 * The check in front of the checkout: answers for a wallet that has paid for them before, or may try
 * before it pays. A use is counted before the upstream is asked, and given back when its buyer gets
 * nothing.
 */

export type UsesOptions = Parameters<typeof signIn>[1] & {
  entitlements: EntitlementLedger
  settlement: Settlement
  answers: Answers
  tally: Tally
  meter: Pick<Meter, 'counter'>
  /** Wallets of one client whose balance is read in a minute. */
  trialsPerMinute: () => number
  now: () => number
  log: WriteEvent
}

type Context = UsesOptions & {
  deliveries: Deliveries
  fingerprintOf(sale: GatewaySale): string
  /** Reserves a place at the upstream, until the claim is released. Throws ProblemError. */
  reserve(sale: GatewaySale, claim: RequestClaim): void
  /** Continues a payment whose buyer has got nothing. */
  resume(sale: GatewaySale, payment: Payment): Promise<Response>
}

/** What a request may use. */
type Open = Pick<Entitlement, 'kind' | 'wallet' | 'until' | 'payment'> & {
  /** Uses that are left after this one. */
  remaining: number
  counted: Pick<Parameters<EntitlementLedger['use']>[0], 'entitlement' | 'day'>
}

/** A use that was counted. */
type Use = Open & { id: string; next: string }

export type Uses = ReturnType<typeof createUses>

export function createUses(options: Context) {
  const ends = options.meter.counter(
    'entitlement_uses_total',
    'Answers without a further payment; `failed` ones are given back.',
    ['kind', 'outcome'],
  )
  const spentDays: SpentDays = new Map()
  const context = { ...options, ends, spentDays, checkTrial: createTrialCheck(options) }
  const { entitlements, settlement, fingerprintOf, now } = options
  // The database reports its fault itself.
  const sweep = () => entitlements.sweep(now() - dayMs).catch(() => {})
  const sweeping = setInterval(() => void sweep(), sweepMs)
  sweeping.unref()
  /** The first delivery of a payment needs the same: what is delivered was seen by two nodes. */
  const assertSure = async (payment: Payment) => {
    const isSure = isDelivered(payment) || !settlement.needsSecond(payment)
    if (!isSure && !(await settlement.confirmTwice(payment)))
      throw Denial.unpaid({ kind: 'pending', payment })
  }
  return {
    stop: () => clearInterval(sweeping),
    /** Answers a request of a wallet that signs in. Throws ProblemError: 402 when it has nothing here. */
    async bySignIn(sale: GatewaySale): Promise<Response> {
      const signed = await signIn(sale, options)
      const { merchant, route } = sale.purpose
      const { wallet, network } = signed
      const by = { id: signed.nonce, next: 'The use does not count: sign in again.' }
      const found = await entitlements.find({
        ...{ merchant, route, wallet, now: now() },
        fingerprint: fingerprintOf(sale),
      })
      // A signature that only a contract accepts is valid on its chain alone.
      const own = found.filter((each) => network === undefined || each.network === network)
      const owed = own.find((each) => isOwed(each, now()))
      if (owed?.payment !== undefined) {
        // Counted for its nonce only: the payment limits its own attempts, and is not to be paid again.
        await take(context, { ...by, attemptsMax: owedMax }, [openOf(owed)])
        await entitlements.end(by.id, false)
        return options.resume(sale, owed.payment).catch((error) => explain(context, owed, error))
      }
      const open = own.filter(isOpen).map(openOf)
      for (const { payment } of open) if (payment !== undefined) await assertSure(payment)
      if (open.length === 0) open.push(await trialOf(context, sale, signed, found))
      return give(context, sale, () => take(context, by, open))
    },
    /** The answer of a delivered payment, by its token. Undefined: it is not fetched again any more. */
    async byToken(sale: GatewaySale, payment: Payment): Promise<Response | undefined> {
      const entitlement = await entitlements.findByPayment(payment.id)
      if (entitlement?.kind !== 'again') return undefined
      assertSameRequest(sale, payment, fingerprintOf(sale))
      const id = `use_${crypto.randomUUID().replaceAll('-', '')}`
      const by = { id, next: 'The use does not count: send the same token again.' }
      const answer = give(context, sale, () => take(context, by, [openOf(entitlement)]))
      return answer.catch((error: unknown) => {
        if (error instanceof Problem.ProblemError && error.code === 'not-entitled') return undefined
        throw error
      })
    },
  }
}

/** More sign-ins than can be made for a payment that is owed. */
const owedMax = 1_000_000_000

/** What is over is deleted so often, a day later. */
const sweepMs = 600_000

function isDelivered(payment: Payment | undefined): boolean {
  return payment?.delivery === 'delivered'
}

/** Trials have a counter for the day besides their own. */
function isOpen({ kind, uses, usesMax, payment }: Entitlement): boolean {
  return kind !== 'trial' && uses < usesMax && (kind === 'pass' || isDelivered(payment))
}

/** Its own credential may have got the answer meanwhile. Then the next sign-in gets it again. */
async function explain(
  { settlement }: Context,
  { payment }: Entitlement,
  error: unknown,
): Promise<never> {
  const current = payment && (await settlement.findById(payment.id))
  throw current?.delivery === 'delivered' ? Denial.inProgress() : error
}

/** Whether a payment can still be redeemed. */
function isOwed({ kind, payment }: Entitlement, at: number): boolean {
  return kind === 'again' && payment !== undefined && whyOver(payment, at) === undefined
}

function openOf({ id, uses, usesMax, ...own }: Entitlement): Open {
  return { ...own, remaining: Math.max(0, usesMax - uses - 1), counted: { entitlement: { id } } }
}

/** Throws ProblemError where a payment was made for another request. */
export function assertSameRequest(
  { purpose: { merchant, route } }: Pick<GatewaySale, 'purpose'>,
  { purpose }: Payment,
  fingerprint: string,
): void {
  const isSame =
    merchant === purpose.merchant && route === purpose.route && fingerprint === purpose.fingerprint
  if (!isSame) throw Denial.mismatch('The token belongs to another request.')
}

/** Days whose free answers are used up, and until when that is not looked at again. Unix ms. */
type SpentDays = Map<string, number>
/** So long no wallet is read for a day that was used up, although a failed use may be given back. */
const spentMs = 5_000
const spentDaysMax = 1_000
type TrialState = { checkTrial: ReturnType<typeof createTrialCheck>; spentDays: SpentDays }

/** The next free answer of a wallet. Throws ProblemError 402 when it has none. */
async function trialOf(
  { checkTrial, spentDays, now }: Context & TrialState,
  { item, purpose: { merchant, route }, client }: GatewaySale,
  { wallet, network, chain }: SignedIn,
  found: readonly Entitlement[],
): Promise<Open> {
  const { trial } = item
  const begun = found.find(({ kind }) => kind === 'trial')
  const isOther = begun !== undefined && network !== undefined && begun.network !== network
  if (trial === undefined || isOther) {
    const had = found.some((each) => network === undefined || each.network === network)
    throw Denial.notEntitled(had ? 'entitlement_spent' : 'no_entitlement')
  }
  const { requests: usesMax, totalPerDay, floors } = trial
  const remaining = usesMax - (begun?.uses ?? 0) - 1
  if (remaining < 0) throw Denial.notEntitled('entitlement_spent')
  const day = { id: dayId({ merchant, route }, now()), max: totalPerDay }
  if (begun === undefined) {
    if (now() < (spentDays.get(day.id) ?? 0)) throw Denial.notEntitled('trial_day_spent')
    const floor = floors.find((each) => each.network === chain)
    const signedFor = item.offers.find((offer) => offer.network.id === chain)?.network
    if (floor === undefined || signedFor === undefined) throw Denial.notEntitled('no_entitlement')
    const refusal = await checkTrial({ wallet, network: signedFor, floor, client })
    if (refusal !== undefined) throw refusal
  }
  const counted = {
    entitlement: { trial: { merchant, route, wallet, network: chain, usesMax } },
    day,
  }
  return { kind: 'trial', wallet, until: undefined, payment: undefined, remaining, counted }
}

/**
 * Answers a request that can be served now. `counted` counts the use, after a place at the upstream is
 * reserved. Throws ProblemError.
 */
async function give(
  context: Context & { ends: Counter },
  sale: GatewaySale,
  counted: () => Promise<Use>,
): Promise<Response> {
  const { invalidParams } = sale
  if (invalidParams.length > 0) throw Denial.invalidParameters(invalidParams)
  const unavailable = await sale.unavailable()
  if (unavailable !== undefined) throw unavailable
  const claim = createClaim()
  try {
    context.reserve(sale, claim)
    if (sale.signal.aborted) throw left()
    const use = await counted()
    return await context.deliveries.handOver(deliveryOf(context, sale, use, claim.release))
  } catch (error) {
    claim.release()
    throw error
  }
}

/** Counts a use of the first that still has one. Throws ProblemError. */
async function take(
  { entitlements, spentDays, now }: Context & Pick<TrialState, 'spentDays'>,
  { attemptsMax: most = attemptsMax, ...own }: Pick<Use, 'id' | 'next'> & { attemptsMax?: number },
  all: readonly Open[],
): Promise<Use> {
  const { id } = own
  let reason: Denial.Unentitled = 'entitlement_spent'
  for (const open of all) {
    const used = await entitlements.use({ id, ...open.counted, attemptsMax: most, now: now() })
    if (used === 'used') return { ...open, ...own }
    if (used === 'id-used') throw refused(nonceUsed)
    if (used !== 'day-spent') continue
    reason = 'trial_day_spent'
    if (spentDays.size >= spentDaysMax) spentDays.clear()
    if (open.counted.day) spentDays.set(open.counted.day.id, now() + spentMs)
  }
  throw Denial.notEntitled(reason)
}

const nonceUsed = {
  code: 'invalid_siwx_nonce',
  detail: 'The sign-in was used before: sign a fresh challenge.',
}

type Counter = ReturnType<UsesOptions['meter']['counter']>

function deliveryOf(
  context: Context & { ends: Counter },
  sale: GatewaySale,
  use: Use,
  release: () => void,
): Delivery {
  const { answers, deliveries, entitlements, tally, ends, log, now } = context
  const { id, kind, wallet, payment, next } = use
  const isAgain = kind === 'again' && payment !== undefined
  const end = async (status: number | undefined, reach: Reach): Promise<void> => {
    const { merchant, route } = sale.purpose
    const fields = { requestId: sale.requestId, use: id, kind, merchant, route, status, reach }
    try {
      const outcome = reach === 'nothing' ? 'failed' : 'delivered'
      if (!(await entitlements.end(id, reach !== 'nothing'))) return
      ends.inc({ kind, outcome })
      if (outcome === 'delivered') countFree(tally.of(sale.item, sale.clientKind), kind)
      log('entitlement-use', fields, () => lineOf(sale, use, reach))
    } catch (error) {
      log('entitlement-use-unrecorded', { ...fields, error })
    }
  }
  return {
    request: answeredBy(sale, {
      async fulfil(attempt) {
        const stored = isAgain ? await answers.find(payment.id, now()) : undefined
        if (stored === undefined) return sale.fulfil(attempt)
        return { delivered: true, ...stored, headers: replayed(stored) }
      },
    }),
    // The upstream sees what is fetched again as the same request.
    attempt: {
      id: isAgain ? payment.id : id,
      attempts: 1,
      transfer: { payer: wallet },
      isFree: true,
    },
    headers: () => ({
      ...(isAgain && deliveries.headingsOf(payment, receipted(sale, payment))),
      'payment-entitlement': textOf(use),
    }),
    async record(status, decide) {
      await new Promise((resolve) => setImmediate(resolve))
      const reach = decide()
      await end(status, reach)
      return reach
    },
    end: () => end(undefined, 'nothing'),
    async refuse({ code, detail, upstreamStatus }) {
      await end(upstreamStatus, 'nothing')
      const status = upstreamStatus === undefined ? {} : { upstreamStatus }
      const members = { reason: 'delivery_failed', ...status }
      throw Problem.of(code, `${detail} ${next}`, { members })
    },
    release,
  }
}

function receipted({ search }: GatewaySale, { purpose: { protocol } }: Payment) {
  return { search, protocol, isAgain: true }
}

/** `Payment-Entitlement`, a dictionary of RFC 9651. */
function textOf({ kind, remaining, until }: Use): string {
  const end = until === undefined ? '' : `, until="${new Date(until).toISOString()}"`
  return `kind=${kind}, remaining=${remaining}${end}`
}

/** `used pass api /hello from 0x7099...79C8, 497 left`. Undefined where the buyer got nothing. */
function lineOf(
  { purpose: { merchant, route } }: GatewaySale,
  { kind, wallet, remaining }: Use,
  reach: Reach,
): string | undefined {
  if (reach === 'nothing') return undefined
  const cut = reach === 'truncated' ? '; the answer was cut' : ''
  return `used ${kind} ${merchant} ${route || '/'} from ${short(wallet)}, ${remaining} left${cut}`
}
