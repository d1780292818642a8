import type { Address, Hex } from 'viem'
import type { GrantRow, TopUpRow } from '../../db/grants'
import type { Db } from '../../db/sqlite/open'
import { isDuplicate } from '../../db/sqlite/write'
import type { NetworkConfig, Sponsor } from '../config/Config'
import type { Log } from '../log'
import type * as Network from '../protocol/Network'
import type { Settlement } from '../settlement/settlement'
import * as Grant from './Grant'
import { createStore } from './store'

/** What sponsoring needs of settlement. */
export type SponsorSettlement = Pick<
  Settlement,
  'run' | 'job' | 'read' | 'rpc' | 'fees' | 'isReady' | 'verify'
>

/** A network on which approvals are sponsored. */
export type Sponsored = NetworkConfig & { sponsor: Sponsor }

export type GrantRequest = {
  network: Sponsored
  address: Address
  amountWei: bigint
  /** The address itself asked, which its signature shows. */
  isSigned: boolean
  /** Hash of the approve that the address had signed. */
  approveHash: Hex | undefined
  /** The address has a grant, which became too small before it was used. */
  isTopUp?: boolean
}

export type Funded =
  | { kind: 'funded'; transaction: Hex; amountWei: bigint }
  /** Sent, not confirmed in time; the work goes on. */
  | { kind: 'pending'; transaction: Hex }
  /** Another request was first; it is the only one. */
  | { kind: 'taken' }
  /** The transfer failed or was displaced; nothing more is given. */
  | { kind: 'lost'; transaction: Hex }
  | { kind: 'full'; room: Exclude<Grant.Room, 'open'> }
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }

/** One ledger for grants by request and for approves that came signed. */
export type Ledger = {
  find(network: Network.Id, address: Address): GrantRow | undefined
  /** The top-up of a grant. */
  findTopUp(network: Network.Id, address: Address): TopUpRow | undefined
  /** How much room today has for another grant of any size. */
  room(network: Sponsored): Grant.Room
  /**
   * Reserves the address and sends, in one database transaction, and waits for the confirmation. An
   * request whose row has the same approve goes on with what was sent. Rejects only on faults of ours.
   */
  fund(request: GrantRequest, options: { waitMs: number }): Promise<Funded>
  /** How the transfer of a row stands. */
  stands(row: GrantRow): { transaction: Hex; state: 'under-way' | 'confirmed' | 'lost' }
  /** Networks whose budget of today is spent. */
  spent(): readonly { network: Network.Id; reason: string }[]
  tally(network: Network.Id): Grant.Tally
}

export type LedgerOptions = {
  db: Db
  settlement: SponsorSettlement
  networks: readonly Sponsored[]
  now: () => number
  log: Log
}

/** The day has no room for the request, found inside the transaction that would have written it. */
class FullError extends Error {
  override readonly name = 'FullError'
  readonly room: Exclude<Grant.Room, 'open'>

  constructor(room: Exclude<Grant.Room, 'open'>) {
    super(`the budget is ${room}`)
    this.room = room
  }
}

const states = {
  broadcast: 'under-way',
  confirmed: 'confirmed',
  failed: 'lost',
  replaced: 'lost',
} as const

type Context = LedgerOptions & {
  store: ReturnType<typeof createStore>
  tallies: Map<Network.Id, Grant.Tally & { day: number }>
}

/** The ledger of a database. */
export function createLedger(options: LedgerOptions): Ledger {
  const store = createStore(options.db)
  const context: Context = { ...options, store, tallies: new Map() }
  return {
    find: store.find,
    findTopUp: store.findTopUp,
    room: (network) => room(context, network, 0n),
    tally: (network) => tally(context, network),
    async fund(request, { waitMs }) {
      try {
        return await fund(context, request, waitMs)
      } catch (error) {
        if (error instanceof FullError) return { kind: 'full', room: error.room }
        if (isDuplicate(error)) return { kind: 'taken' }
        throw error
      }
    },
    stands(row) {
      const job = options.settlement.job(Grant.idOf(row.network, row.address))
      return {
        transaction: job?.transaction ?? row.transactionHash,
        state: states[job?.state ?? 'broadcast'],
      }
    },
    spent: () =>
      options.networks
        // A budget of nothing is a choice, not a fault.
        .filter(
          ({ sponsor, gasPerDayWei }) => sponsor.grantsPerDay > 0 && gasPerDayWei.sponsor > 0n,
        )
        .filter((network) => room(context, network, 0n) === 'spent')
        .map(({ id }) => ({ network: id, reason: 'the sponsoring budget of today is spent' })),
  }
}

/** Of today; read once a day, because only this process writes. */
function tally({ store, tallies, now }: Context, network: Network.Id): Grant.Tally {
  const day = Grant.dayOf(now())
  const known = tallies.get(network)
  if (known?.day === day) return known
  const fresh = { day, ...store.tallySince(network, day) }
  tallies.set(network, fresh)
  return fresh
}

function room(context: Context, { id, sponsor, gasPerDayWei }: Sponsored, wei: bigint): Grant.Room {
  const budget = { grants: sponsor.grantsPerDay, wei: gasPerDayWei.sponsor }
  return Grant.roomFor(tally(context, id), budget, wei)
}

/** Inside the transaction that stores the signed transfer: all of it or nothing is kept. */
function reserve(
  context: Context,
  request: GrantRequest,
  transactionHash: Hex,
  feeWei: bigint,
): void {
  const { store, tallies, now } = context
  const { network, address, amountWei, approveHash, isSigned } = request
  const left = room(context, network, amountWei + feeWei)
  if (left === 'spent' || (left === 'signed' && !isSigned)) throw new FullError(left)
  const row = { network: network.id, address, amountWei, feeWei, transactionHash }
  if (request.isTopUp === true) store.insertTopUp({ ...row, createdAt: now() })
  else {
    store.insert({
      ...row,
      token: network.asset.address,
      kind: approveHash === undefined ? 'grant' : 'approval',
      approveHash: approveHash ?? null,
      createdAt: now(),
    })
  }
  const today = tally(context, network.id)
  // Also when the commit fails: then a little less is given today.
  tallies.set(network.id, {
    day: Grant.dayOf(now()),
    grants: today.grants + 1,
    wei: today.wei + amountWei + feeWei,
  })
}

/** The row that a request wrote or would write. */
function rowOf(
  { store }: Context,
  { network: { id }, address, isTopUp }: GrantRequest,
): GrantRow | TopUpRow | undefined {
  return isTopUp === true ? store.findTopUp(id, address) : store.find(id, address)
}

function learnFee(context: Context, request: GrantRequest, spentWei: bigint): void {
  const { store, tallies, now } = context
  const { id } = request.network
  const row = rowOf(context, request)
  if (row === undefined || row.feeWei === spentWei) return
  if (request.isTopUp === true) store.setTopUpFee(id, request.address, spentWei)
  else store.setFee(id, request.address, spentWei)
  const today = tally(context, id)
  if (row.createdAt < Grant.dayOf(now())) return
  tallies.set(id, {
    day: Grant.dayOf(now()),
    grants: today.grants,
    wei: today.wei - row.feeWei + spentWei,
  })
}

async function fund(context: Context, request: GrantRequest, waitMs: number): Promise<Funded> {
  const { settlement, log } = context
  const { network, address, approveHash } = request
  const known = rowOf(context, request)
  const isSame = known && 'approveHash' in known && known.approveHash === approveHash
  if (known && !isSame) return { kind: 'taken' }
  const amountWei = known?.amountWei ?? request.amountWei
  let isOurs = known !== undefined
  const feeWei = Grant.transferGasLimit * settlement.fees(network.id).maxFeeWei
  const end = await settlement.run(
    {
      id: request.isTopUp ? Grant.topUpIdOf(network.id, address) : Grant.idOf(network.id, address),
      kind: 'grant',
      product: 'sponsor',
      network: network.id,
      relayer: undefined,
      to: address,
      data: '0x',
      valueWei: amountWei,
      gasLimit: Grant.transferGasLimit,
    },
    {
      waitMs,
      write(transaction) {
        reserve(context, request, transaction, feeWei)
        isOurs = true
      },
    },
  )
  // Another request wrote it between the read above and the write, and is answered for it.
  if (!isOurs && rowOf(context, request)) return { kind: 'taken' }
  switch (end.kind) {
    case 'confirmed':
      learnFee(context, request, end.receipt.spentWei)
      return { kind: 'funded', transaction: end.transaction, amountWei }
    case 'pending':
      return end
    case 'unavailable':
      return end
    case 'failed':
    case 'replaced':
      log.error('grant-lost', { network: network.id, address, transaction: end.transaction })
      return { kind: 'lost', transaction: end.transaction }
  }
}
