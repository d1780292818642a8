import type { Address, Hex } from 'viem'
import { type Room, roomFor, type Tally } from '../../db/GrantBudget'
import type { GrantLedger, NewGrant } from '../../db/GrantLedger'
import type { RowsRefusal } from '../../db/Ledger'
import type { GrantRow, TopUpRow } from '../../db/schema'
import { RpcFault } from '../chain/client'
import { isHex } from '../chain/receipt'
import type { NetworkConfig, Sponsor } from '../config/Config'
import type { Log } from '../log'
import type * as Network from '../protocol/Network'
import { dayStart } from '../protocol/Time'
import type { Settlement } from '../settlement/settlement'
import * as Grant from './Grant'

/** The parts of settlement that sponsoring uses. */
export type SponsorSettlement = Pick<
  Settlement,
  'run' | 'job' | 'read' | 'rpc' | 'fees' | 'isReady' | 'verify'
>

/** A network on which approvals are sponsored. */
export type Sponsored = NetworkConfig & { sponsor: Sponsor }

/** One ledger for grants by request and for signed approves. */
export type SponsorLedger = {
  grants: GrantLedger
  settlement: SponsorSettlement
  networks: readonly Sponsored[]
  now: () => number
  log: Log
}

type GrantRequest = {
  network: Sponsored
  address: Address
  amountWei: bigint
  /** The address signed the request. */
  isSigned: boolean
  /** Hash of the approve that the address had signed. */
  approveHash: Hex | undefined
  /** The address has a grant, which became too small before it was used. */
  isTopUp?: boolean
}

export type Funded =
  | { kind: 'funded'; transaction: Hex; amountWei: bigint }
  /** Sent, not confirmed in time; settlement continues in the background. */
  | { kind: 'pending'; transaction: Hex }
  /** Another request was first; it is the only one. */
  | { kind: 'taken' }
  /** The transfer failed or was displaced; no other grant follows. */
  | { kind: 'lost'; transaction: Hex }
  | { kind: 'full'; room: Exclude<Room, 'open'> }
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }

const states = {
  broadcast: 'under-way',
  confirmed: 'confirmed',
  failed: 'lost',
  replaced: 'lost',
} as const

/** The state of the transfer of a row. */
export async function standingOf({ settlement }: SponsorLedger, row: GrantRow) {
  const job = await settlement.job(Grant.idOf(row.network, row.address))
  const transaction = job?.transaction ?? row.transactionHash
  return { transaction, state: states[job?.state ?? 'broadcast'] }
}

/** The sum of today's grants. */
export function tallyOf({ grants, now }: SponsorLedger, network: Network.Id): Promise<Tally> {
  return grants.tallySince(network, dayStart(now()))
}

/**
 * The room of today for another grant of any size. Advisory, to save work: the write of the grant
 * decides.
 */
export async function roomOf(ledger: SponsorLedger, network: Sponsored): Promise<Room> {
  return roomFor(await tallyOf(ledger, network.id), budgetOf(network), 0n)
}

/** Networks whose budget of today is spent. */
export async function spentOf(
  ledger: SponsorLedger,
): Promise<readonly { network: Network.Id; reason: string }[]> {
  // A budget of zero is configured, not a fault.
  const sponsoring = ledger.networks.filter(
    ({ sponsor, gasPerDayWei }) => sponsor.grantsPerDay > 0 && gasPerDayWei.sponsor > 0n,
  )
  const rooms = await Promise.all(sponsoring.map((network) => roomOf(ledger, network)))
  return sponsoring
    .filter((_, index) => rooms[index] === 'spent')
    .map(({ id }) => ({ network: id, reason: 'the sponsoring budget of today is spent' }))
}

function budgetOf({ sponsor, gasPerDayWei }: Sponsored) {
  return { grants: sponsor.grantsPerDay, wei: gasPerDayWei.sponsor }
}

/** Written in the transaction that stores the signed transfer, atomically. */
function grantOf(request: GrantRequest, feeWei: bigint, now: number): NewGrant {
  const { network, address, amountWei, approveHash = null, isSigned } = request
  const budget = { ...budgetOf(network), from: dayStart(now) }
  const row = { network: network.id, address, amountWei, feeWei, createdAt: now }
  if (request.isTopUp === true) return { isTopUp: true, row, budget, isSigned }
  const kind = approveHash === null ? 'grant' : 'approval'
  const token = network.asset.address
  return { isTopUp: false, row: { ...row, token, kind, approveHash }, budget, isSigned }
}

/** The row that a request wrote or would write. */
function rowOf(
  { grants }: SponsorLedger,
  { network: { id }, address, isTopUp }: GrantRequest,
): Promise<GrantRow | TopUpRow | undefined> {
  return isTopUp === true ? grants.findTopUp(id, address) : grants.find(id, address)
}

/** The approve for which a row was written; null for a request without one. */
function approveHashOf(row: object) {
  return 'approveHash' in row ? row.approveHash : null
}

/** Whether this request wrote the row. Its fee may have been updated since. */
function isWrittenBy({ row }: NewGrant, stored: GrantRow | TopUpRow): boolean {
  return (
    stored.createdAt === row.createdAt &&
    stored.amountWei === row.amountWei &&
    approveHashOf(stored) === approveHashOf(row)
  )
}

/**
 * Reserves the address and sends, in one database transaction, and waits for the confirmation. A
 * request whose row has the same approve continues the sent transfer. Rejects on internal faults, and
 * with RpcFault or RpcError before anything is written.
 */
export async function sendGrant(
  ledger: SponsorLedger,
  request: GrantRequest,
  waitMs: number,
): Promise<Funded> {
  const { settlement, grants, now, log } = ledger
  const { network, address, approveHash, isTopUp = false } = request
  const known = await rowOf(ledger, request)
  if (known && (approveHash === undefined || approveHashOf(known) !== approveHash)) {
    return { kind: 'taken' }
  }
  const amountWei = known?.amountWei ?? request.amountWei
  const gasLimit = await transferGas(settlement, network.id)
  const feeWei = gasLimit * settlement.fees(network.id).maxFeeWei
  const grant = grantOf(request, feeWei, now())
  const end = await settlement.run(
    {
      id: isTopUp ? Grant.topUpIdOf(network.id, address) : Grant.idOf(network.id, address),
      kind: 'grant',
      product: 'sponsor',
      network: network.id,
      relayer: undefined,
      to: address,
      data: '0x',
      valueWei: amountWei,
      gasLimit,
    },
    { waitMs, rider: { kind: 'grant', grant } },
  )
  if (end.kind === 'refused') return refusedFor(end.reason)
  const written = known ?? (await rowOf(ledger, request))
  // Another request wrote it between the read above and the write, and has the grant.
  if (!known && written && !isWrittenBy(grant, written)) return { kind: 'taken' }
  const { kind } = end
  if (kind === 'pending' || kind === 'unavailable') return end
  const { transaction } = end
  if (kind === 'confirmed') {
    await grants.setFee({ network: network.id, address, isTopUp }, end.receipt.spentWei)
    return { kind: 'funded', transaction, amountWei }
  }
  log('grant-lost', { network: network.id, address, transaction })
  return { kind: 'lost', transaction }
}

/** Gas limit of a grant. Throws RpcFault or RpcError. */
async function transferGas(settlement: SponsorSettlement, network: Network.Id): Promise<bigint> {
  const estimate = await settlement.rpc(network, 'eth_estimateGas', [{ to: empty, value: '0x0' }])
  const limit = isHex(estimate) ? Grant.transferGasOf(BigInt(estimate)) : undefined
  if (limit === undefined) throw new RpcFault('the gas of a transfer cannot be estimated')
  return limit
}

/** An address without code. */
const empty: Address = '0x000000000000000000000000000000000000dEaD'

function refusedFor(reason: RowsRefusal): Funded {
  switch (reason) {
    case 'grant-exists':
      return { kind: 'taken' }
    case 'grants-spent':
      return { kind: 'full', room: 'spent' }
    case 'grants-signed-only':
      return { kind: 'full', room: 'signed' }
    default:
      throw new Error(`a grant was refused: ${reason}`)
  }
}
