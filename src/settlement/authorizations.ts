import type { Address } from 'viem'
import type { Authorization, Charge, Delivered } from '../../db/Authorization'
import type { AuthorizationLedger, CeilingLimits, Inserted } from '../../db/AuthorizationLedger'
import { storageCode } from '../../db/fault'
import type { Purpose } from '../../db/Payment'
import { isContract, isIdentified } from '../chain/code'
import type * as Network from '../protocol/Network'
import type { Transfer } from '../protocol/Transfer'
import { limitsOf, refuseFull, refuseUnfunded } from './ceiling-limits'
import { type ChargeOptions, followEnds, followOthers, settleCharge } from './charges'
import { about, type Context, chainOf } from './context'
import * as Gas from './gas'
import type { Intake } from './intake'
import { type Outcome, RowsRefusedError } from './Outcome'
import { payerOf } from './payers'
import * as Refusals from './refusals'
import { isReady, makesRoom, pausedBy } from './relayer'
import { checkSignature } from './signature'
import { type ChainState, chainNow } from './state'
import { type Checked, check } from './verify'
import { type Voided, type VoidOptions, writeVoid } from './voids'

/*
 * The scheme `upto`: authorize (the ceiling is checked, reserved and written), then the request is
 * forwarded and metered, `charge` writes what it costs, and `settleCharge` settles that as a payment
 * of the same id, by the relayer that the payer signed.
 */

/** Time for which a payer pays by `exact` after its charge failed by its doing, ms. */
const exactOnlyMs = 24 * 60 * 60 * 1000

/** Clients compute the deadline of a permit a little earlier or later than that of its payment. */
const permitSlackSeconds = 5n

export type Authorized = { kind: 'authorized'; authorization: Authorization }

export type Authorizations = Pick<
  AuthorizationLedger,
  'find' | 'findById' | 'findByIdempotencyKey' | 'findVoid'
> & {
  /**
   * Relayers that may settle `upto` on a network now; none where the chain lacks the contracts. No
   * I/O.
   */
  facilitators(network: Network.Id, ceilingAtomic: bigint): readonly Address[]
  /**
   * Checks and writes a signed ceiling (`amountAtomic`, with `upto`). The caller has the claim on the
   * money, and ends with `charge`. Rejects with RowsRefusedError `key-used` when another process has
   * sold by the buyer's own key.
   */
  authorize(
    transfer: Transfer,
    purpose: Purpose,
    options: AuthorizeOptions,
  ): Promise<Authorized | Outcome>
  /**
   * Writes what the answer costs; an amount of 0 ends the authorization as `void`. `delivered`: what
   * the buyer has before it is settled. Throws above the ceiling, and when it was charged before.
   */
  charge(
    authorization: Authorization,
    charge: Charge,
    delivered?: Delivered,
  ): Promise<Authorization>
  /** Counts an answer that failed after its payer had a part of it. It costs nothing. */
  countUnpaid(authorization: Authorization): void
  /**
   * Writes a ceiling from which nothing will ever be charged. The caller has the claim on the
   * money, and has verified the ceiling.
   */
  void(transfer: Transfer, purpose: Purpose, options: VoidOptions): Promise<Voided>
  /**
   * Settles a metered charge, or waits for the settlement that is running. A charge whose answer the
   * buyer does not have is given up when it cannot be settled: then it never will be.
   */
  settleCharge(authorization: Authorization, options: ChargeOptions): Promise<Outcome>
}

export type AuthorizeOptions = {
  id: string
  receivedAt: number
  /** Unix ms until which the authorization must be valid. */
  validUntil: number
  /**
   * Called while a node verifies the ceiling, so that work of the caller adds no delay. An error
   * that it throws ends the authorization, and nothing is written. Called again after an approve,
   * so it must be repeatable.
   */
  onAsked?: (() => void) | undefined
}

export function createAuthorizations(context: Intake): Authorizations {
  const { authorizations } = context.ledger
  followEnds(context)
  followOthers(context)
  return {
    find: authorizations.find,
    findById: authorizations.findById,
    findByIdempotencyKey: authorizations.findByIdempotencyKey,
    findVoid: authorizations.findVoid,
    facilitators(network, ceilingAtomic) {
      const chain = context.chains.get(network)
      if (!chain || ceilingAtomic > context.policy.unsettledMax()) return []
      return facilitatorsOf(chain)
    },
    authorize: (transfer, purpose, options) => authorize(context, transfer, purpose, options),
    charge: (authorization, charge, delivered) =>
      writeCharge(context, authorization, charge, delivered),
    countUnpaid: ({ transfer }) => context.payers.unpaid.record(transfer.payer),
    void: (transfer, purpose, options) => writeVoid(context, transfer, purpose, options),
    settleCharge: (authorization, options) => settleCharge(context, authorization, options),
  }
}

function facilitatorsOf({ abilities, relayers }: ChainState): readonly Address[] {
  if (!abilities.hasUpto) return []
  return relayers.flatMap((relayer) => {
    const isPaused = pausedBy(relayer) !== undefined || makesRoom(relayer, relayers)
    return relayer.isReserved || isPaused ? [] : [relayer.address]
  })
}

async function authorize(
  context: Context,
  transfer: Transfer,
  purpose: Purpose,
  { id, receivedAt, validUntil, onAsked }: AuthorizeOptions,
): Promise<Authorized | Outcome> {
  const { ledger, ceilings, payers, now } = context
  const chain = chainOf(context, transfer.network)
  const refused = refuseUnread(context, chain, transfer, { purpose, validUntil })
  if (refused) return refused
  if (await ledger.authorizations.hasFailedSince(transfer.payer, now() - exactOnlyMs))
    return exactOnly
  const knownBlock = chain.head.number
  const checked = await whileAsked(checkSigned(context, chain, transfer), onAsked)
  if ('kind' in checked) return checked
  const { simulation, transfer: sent } = checked
  const payer = await payerOf(ledger.payments, sent, simulation.code)
  const waitSeconds = payers.failures.waitSeconds(payer)
  if (waitSeconds > 0) return Refusals.lockedOut(waitSeconds)
  if (isContract(simulation.code) || isIdentified(simulation.code)) {
    const spent = Gas.refuseCode(context, chain, purpose)
    if (spent) return spent
  }
  // Read again: a charge may have failed during the simulation, and then its ceiling is no longer
  // open.
  if (await ledger.authorizations.hasFailedSince(transfer.payer, now() - exactOnlyMs))
    return exactOnly
  // Do not await between the checks and the reservation.
  const unreserved = refuseFull(context, chain, sent) ?? refuseUnfunded(context, sent, simulation)
  if (unreserved) return unreserved
  const { code, balanceAtomic, allowanceAtomic } = simulation
  const at = chainNow(context, chain)
  const limits = limitsOf(context, chain, sent, simulation)
  ceilings.add(id, sent, code === 'eoa' ? { balanceAtomic, allowanceAtomic, at } : undefined)
  const authorization: Authorization = {
    id,
    transfer: sent,
    purpose,
    state: 'authorized',
    charge: undefined,
    delivered: undefined,
    failedAt: undefined,
    receivedAt,
    knownBlock,
    createdAt: now(),
  }
  return write(context, authorization, limits)
}

/** Runs `work` while a call is under way. Resolves with the result of the call. */
async function whileAsked<T>(asked: Promise<T>, work: (() => void) | undefined): Promise<T> {
  try {
    work?.()
  } catch (error) {
    // The result is no longer awaited.
    asked.catch(() => {})
    throw error
  }
  return await asked
}

/** Releases its ceiling unless it is stored. Rejects with RowsRefusedError. */
async function write(
  context: Context,
  authorization: Authorization,
  limits: CeilingLimits,
): Promise<Authorized | Outcome> {
  const { ledger, ceilings } = context
  const { id, transfer } = authorization
  let inserted: Inserted
  try {
    inserted = await ledger.authorizations.insert(authorization, limits)
  } catch (error) {
    ceilings.release(id)
    context.log('settlement-fault', { ...about({ id }), error })
    return Refusals.unavailable(error)
  }
  if (inserted === 'stored') return { kind: 'authorized', authorization }
  ceilings.release(id)
  if (inserted === 'known') return Refusals.refuseUsed(transfer)
  if (inserted.refused === 'payer-under-way') return Refusals.underWay
  if (inserted.refused === 'relayer-busy') return Refusals.busy
  throw new RowsRefusedError(inserted.refused)
}

/**
 * Simulates the whole ceiling. The chain decides about the signature, until one was forged: a client
 * must not cost calls to a node for each.
 */
async function checkSigned(
  context: Context,
  chain: ChainState,
  transfer: Transfer,
): Promise<Checked> {
  const { signers } = context.payers
  const signed = signers.isSuspended()
    ? await checkSignature(chain, transfer, context.now())
    : undefined
  const isRefused = signed !== undefined && signed.kind !== 'signed'
  const checked = isRefused ? signed : await check(context, transfer)
  if ('kind' in checked && checked.kind === 'refused' && Refusals.isUnsigned(checked)) {
    signers.suspend()
  }
  return checked
}

/** The checks that need no call to a node. */
function refuseUnread(
  context: Context,
  chain: ChainState,
  transfer: Transfer,
  { purpose, validUntil }: { purpose: Purpose; validUntil: number },
): Refusals.PaymentRefusal | undefined {
  const { upto, asset, amountAtomic, validBefore, permit2612 } = transfer
  if (upto === undefined || asset !== chain.network.asset.address) {
    throw new Error('not an authorization in the asset of the network')
  }
  if (context.progress.isStopping || !isReady(chain)) return Refusals.unavailable(undefined)
  if (context.policy.isPaused(chain.network.id)) return Refusals.unavailable(undefined)
  if (context.ledger.fault() !== undefined) return Refusals.unrecordable
  const late = Refusals.checkWindow(transfer, context.now())
  if (late) return late
  if (validBefore * 1000n < BigInt(Math.ceil(validUntil))) {
    return Refusals.refuse(
      'permit2_deadline_expired',
      'The authorization must be valid until the answer is made and settled: deadline is ' +
        `${validBefore}, and it must be ${Math.ceil(validUntil / 1000)} or later.`,
    )
  }
  // The proxy ignores a permit that has expired, and then no allowance covers the charge.
  if (permit2612 !== undefined && permit2612.deadline + permitSlackSeconds < validBefore) {
    return Refusals.refuse(
      'permit2_deadline_expired',
      `The permit must be valid as long as the authorization: its deadline is ${permit2612.deadline}, ` +
        `and that of the authorization ${validBefore}.`,
    )
  }
  const relayer = chain.relayers.find(({ address }) => address === upto.facilitator)
  if (!relayer || relayer.isReserved) {
    const own = chain.relayers.filter(({ isReserved }) => !isReserved)
    const addresses = own.map(({ address }) => address).join(', ')
    const detail = `witness.facilitator is ${upto.facilitator}, none of our relayers: ${addresses}.`
    return Refusals.refuse('upto_facilitator_mismatch', detail)
  }
  if (!chain.abilities.hasUpto) {
    return Refusals.refuse(
      'permit2_proxy_not_deployed',
      `x402UptoPermit2Proxy is not on ${transfer.network}: pay by exact.`,
    )
  }
  const lane = { network: transfer.network, relayer: relayer.address }
  // The process that has the account settles what is metered here.
  const isServed = relayer.isHeld
    ? pausedBy(relayer) === undefined
    : context.ledger.lanes.isOfAnother(lane)
  if (!isServed) return Refusals.unavailable(undefined)
  const waitSeconds = context.payers.unpaid.waitSeconds(transfer.payer)
  if (waitSeconds > 0) return Refusals.oftenUnpaid(waitSeconds)
  if (amountAtomic > context.policy.unsettledMax()) {
    const most = context.policy.unsettledMax()
    const detail =
      `The ceiling is ${amountAtomic}, above what one payer may have unsettled, ${most}: pay by ` +
      'exact.'
    return Refusals.refuse('unsupported_scheme', detail)
  }
  return refuseFull(context, chain, transfer) ?? Gas.refuseBudget(context, chain, purpose)
}

/**
 * The refusal of a payer whose charge failed within a day. A client may pay the same price by
 * `exact`.
 */
const exactOnly: Refusals.PaymentRefusal = {
  kind: 'refused',
  reason: 'unsupported_scheme',
  detail: 'a charge of this payer could not be settled within the last day: pay by exact',
}

async function writeCharge(
  { ledger, ceilings, progress, metrics }: Context,
  authorization: Authorization,
  charge: Charge,
  delivered: Delivered | undefined,
): Promise<Authorization> {
  const { id, transfer } = authorization
  const { amountAtomic } = charge
  if (amountAtomic < 0n || amountAtomic > transfer.amountAtomic) {
    throw new Error(`the charge of ${id} is not within its ceiling`)
  }
  const { authorizations } = ledger
  const state = amountAtomic === 0n ? 'void' : 'metered'
  const write = state === 'void' ? authorizations.void : authorizations.meter
  for (;;) {
    try {
      if (await write(id, charge, delivered)) break
      throw new Error(`${id} was charged before`)
    } catch (error) {
      if (storageCode(error) === undefined) throw error
      // The answer, or its end, is kept back until the charge is on the disk.
      await ledger.writable(progress.signal)
    }
  }
  metrics.charged(transfer.network, state)
  if (state === 'void') ceilings.release(id)
  return { ...authorization, state, charge, delivered }
}
