import type { Authorization } from '../../../db/Authorization'
import type { CeilingLimits, Inserted } from '../../../db/authorizations'
import type { Rows } from '../../../db/Ledger'
import type { Purpose } from '../../../db/Payment'
import { chainNow } from '../../chain/clock'
import { isContract } from '../../chain/multicall'
import { checkWindow, type Transfer } from '../../protocol/Transfer'
import * as Refusals from '../read/refusals'
import { type CheckedTransfer, checkSignature, checkTransfer } from '../read/simulate'
import { type Outcome, RowsRefusedError } from '../send/Outcome'
import { isReady, pausedBy } from '../send/relayer'
import * as Gas from '../state/gas-budget'
import { beginRead, payerOf } from '../state/payers'
import { about, type ChainState, type Context, chainOf } from '../state/state'
import { limitsOf, refuseFull, refuseUnfunded, releaseCeiling } from './ceilings'

/** Time for which a payer pays by `exact` after its charge failed by its doing, ms. */
const exactOnlyMs = 24 * 60 * 60 * 1000

/** Clients compute the deadline of a permit a little earlier or later than that of its payment. */
const permitSlackSeconds = 5n

export type Authorized = { kind: 'authorized'; authorization: Authorization }

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
  /** The address of the client, under which failures are counted. */
  client?: string | undefined
  // Only of a voucher.
  requestId?: string
  /** Longest wait for a deposit, ms. */
  waitMs?: number
  /** Written with the charge. */
  rows?: Rows | undefined
}

/** The first step of the scheme `upto`; see `Authorizations`. */
export async function authorize(
  context: Context,
  transfer: Transfer,
  purpose: Purpose,
  { id, receivedAt, validUntil, onAsked, client }: AuthorizeOptions,
): Promise<Authorized | Outcome> {
  const { ledger, ceilings, credit, payers, now } = context
  const { network, asset, payer, amountAtomic } = transfer
  const chain = chainOf(context, network)
  const refused = refuseUnread(context, chain, transfer, { purpose, validUntil })
  if (refused) return refused
  const hasFailed = () => ledger.authorizations.hasFailedSince(payer, now() - exactOnlyMs)
  if (await hasFailed()) return exactOnly
  const debtor = { network, asset, payer, client, merchant: purpose.merchant }
  await credit.read(debtor, amountAtomic)
  const uncredited = credit.refuse(debtor, amountAtomic)
  if (uncredited) return uncredited
  const knownBlock = chain.head.number
  const endRead = beginRead(context.progress)
  let isStored = false
  try {
    const checked = await checkPayer(context, chain, { transfer, purpose, onAsked })
    if ('kind' in checked) return checked
    const { simulation, transfer: sent } = checked
    const signed = { transfer: sent, purpose }
    // Again: a charge may have failed during the simulation, and then its ceiling is no longer open.
    if (await hasFailed()) return exactOnly
    // Do not await between the checks and the reservation.
    const uncovered =
      refuseFull(context, chain, signed) ??
      refuseUnfunded(context, sent, simulation) ??
      credit.refuse(debtor, amountAtomic)
    if (uncovered) return uncovered
    const { code, balanceAtomic, allowanceAtomic } = simulation
    const at = chainNow(context, chain)
    const verified = code === 'eoa' ? { balanceAtomic, allowanceAtomic, at } : undefined
    const close = credit.open(debtor, amountAtomic)
    payers.authorized.add(sent)
    ceilings.set(id, { transfer: sent, verified, isReserved: true, close })
    endRead()
    const limits = limitsOf(context, chain, signed, simulation)
    const authorization: Authorization = {
      ...{ id, transfer: sent, purpose, receivedAt, knownBlock },
      ...{ state: 'authorized', createdAt: now() },
    }
    const written = await writeCeiling(context, authorization, limits)
    isStored = written === 'stored'
    return written === 'stored' ? { kind: 'authorized', authorization } : written
  } finally {
    endRead()
    if (!isStored) releaseCeiling(context, id)
  }
}

/** Simulates a signed transfer, and looks at what is known of its payer. */
export async function checkPayer(
  context: Context,
  chain: ChainState,
  { transfer, purpose, onAsked }: Signed & Pick<AuthorizeOptions, 'onAsked'>,
): Promise<CheckedTransfer> {
  const { ledger, payers } = context
  // Rejects with an error of the caller without a wait for the node.
  const [checked] = await Promise.all([
    checkSigned(context, chain, transfer),
    Promise.try(() => onAsked?.()),
  ])
  if ('kind' in checked) return checked
  const { code } = checked.simulation
  const payer = await payerOf(ledger.payments, checked.transfer, code)
  const waitSeconds = payers.failures.waitSeconds(payer)
  if (waitSeconds > 0) return Refusals.lockedOut(waitSeconds)
  const spent = isContract(code) ? Gas.refuseCode(context, chain, purpose) : undefined
  return spent ?? checked
}

type Signed = { transfer: Transfer; purpose: Purpose }

/**
 * Writes a signed ceiling. A refusal: nothing was written. With limits, throws RowsRefusedError when another
 * process has used the buyer's own key.
 */
export async function writeCeiling(
  context: Context,
  authorization: Authorization,
  limits?: CeilingLimits,
): Promise<'stored' | Refusals.PaymentRefusal> {
  const { id, transfer } = authorization
  let inserted: Inserted
  try {
    inserted = await context.ledger.authorizations.insert(authorization, limits)
  } catch (error) {
    context.log('settlement-fault', { ...about({ id }), error })
    return Refusals.unavailable(error)
  }
  if (inserted === 'stored') return 'stored'
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
): Promise<CheckedTransfer> {
  const { signers } = context.payers
  const signed = signers.isSuspended()
    ? await checkSignature(chain, transfer, context.now())
    : undefined
  const isRefused = signed !== undefined && signed.kind !== 'signed'
  const checked = isRefused ? signed : await checkTransfer(context, transfer)
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
  const { amountAtomic, validBefore, permit2612 } = transfer
  const unserved = refuseUnserved(context, chain, transfer)
  if (unserved) return unserved
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
  if (amountAtomic > context.policy.unsettledMax()) {
    const most = context.policy.unsettledMax()
    const detail =
      `The ceiling is ${amountAtomic}, above what one payer may have unsettled, ${most}: pay by ` +
      'exact.'
    return Refusals.refuse('unsupported_scheme', detail)
  }
  return (
    refuseFull(context, chain, { transfer, purpose }) ?? Gas.refuseBudget(context, chain, purpose)
  )
}

/** The refusal of a signed ceiling that no process can settle now, or ever. Needs no call to a node. */
export function refuseUnserved(
  context: Context,
  chain: ChainState,
  transfer: Transfer,
): Refusals.PaymentRefusal | undefined {
  const { upto, asset } = transfer
  if (upto === undefined || asset !== chain.network.asset.address) {
    throw new Error('not an authorization in the asset of the network')
  }
  if (context.progress.isStopping || !isReady(chain)) return Refusals.unavailable(undefined)
  if (context.policy.isPaused(chain.network.id)) return Refusals.unavailable(undefined)
  if (context.ledger.fault() !== undefined) return Refusals.unrecordable
  const late = checkWindow(transfer, context.now())
  if (late) return Refusals.refuse(late.code, late.detail)
  const named = chain.relayers.filter(({ isReserved }) => !isReserved)
  if (!named.some(({ address }) => address === upto.facilitator)) {
    const addresses = named.map(({ address }) => address).join(', ')
    const detail = `witness.facilitator is ${upto.facilitator}, none of our relayers: ${addresses}.`
    return Refusals.refuse('upto_facilitator_mismatch', detail)
  }
  if (!chain.abilities.hasUpto) {
    return Refusals.refuse(
      'permit2_proxy_not_deployed',
      `x402UptoPermit2Proxy is not on ${transfer.network}: pay by exact.`,
    )
  }
  return isServed(context, transfer) ? undefined : Refusals.unavailable(undefined)
}

/** Whether this process, or another one, can send for the relayer that a payer named. */
export function isServed(
  { chains, ledger }: Pick<Context, 'chains' | 'ledger'>,
  { network, upto }: Transfer,
): boolean {
  const relayers = chains.get(network)?.relayers ?? []
  const relayer = relayers.find(({ address }) => address === upto?.facilitator)
  if (relayer === undefined || relayer.isReserved) return false
  // The process that has the account settles what is written here.
  return relayer.isHeld
    ? pausedBy(relayer) === undefined
    : ledger.lanes.isOfAnother({ network, relayer: relayer.address })
}

/**
 * The refusal of a payer whose charge failed within a day. A client may pay the same price by
 * `exact`.
 */
const exactOnly = Refusals.refuse(
  'unsupported_scheme',
  'a charge of this payer could not be settled within the last day: pay by exact',
)
