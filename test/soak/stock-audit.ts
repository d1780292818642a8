import { type Address, type Hex, numberToHex } from 'viem'
import * as Receipt from '../../src/chain/receipt'
import { balanceOf } from '../../src/demo/chains'
import { throughOf } from '../harness/stock-shop'
import type { Told } from './stock-buyers'
import type { StockSetup } from './stock-setup'

export type StockAudit = {
  figures: Readonly<Record<string, number | string>>
  faults: readonly string[]
}

type OrderRow = {
  id: string
  state: string
  payer: Address
  recipient: Address
  token: Address
  pool: Address
  usdg_atomic: string
  total_atomic: string
  floor_atomic: string
  delivered_atomic: string | null
  returned_atomic: string | null
  settlement_tx: Hex
  swap_tx: Hex | null
  refund_tx: Hex | null
}

/** Transfers on the chain, and the orders that explain them. */
type Audit = {
  readonly setup: StockSetup
  readonly moves: readonly Move[]
  readonly into: readonly Move[]
  readonly out: readonly Move[]
  /** Moves that an order explains. */
  readonly taken: Set<Move>
  readonly sums: { paid: bigint; swapped: bigint; returned: bigint; refunded: bigint }
  readonly faults: string[]
}

/**
 * Compares answers and rows with the chain, which is authoritative: each order is exactly one
 * payment and exactly one swap or refund, and the desk has its balance from before.
 */
export async function auditStocks(
  setup: StockSetup,
  answers: ReadonlyMap<string, Told>,
): Promise<StockAudit> {
  const { chain, network, desk } = setup
  const asset = network.asset.address
  const rows = setup.rows('SELECT * FROM orders') as OrderRow[]
  const moves = await movesOf(setup, asset)
  const audit: Audit = {
    setup,
    moves,
    into: moves.filter(({ to }) => same(to, desk)),
    out: moves.filter(({ from }) => same(from, desk)),
    taken: new Set(),
    sums: { paid: 0n, swapped: 0n, returned: 0n, refunded: 0n },
    faults: [],
  }
  const { sums, faults } = audit
  const ends: Record<string, number> = { delivered: 0, refunded: 0, failed: 0 }
  for (const row of rows) {
    ends[row.state] = (ends[row.state] ?? 0) + 1
    await auditOrder(audit, row)
  }
  const strays = [...audit.into, ...audit.out].filter((move) => !audit.taken.has(move))
  for (const { transaction, amount } of strays)
    faults.push(`${transaction} moved ${amount} for no order`)
  if (sums.paid !== sums.swapped + sums.returned + sums.refunded) {
    faults.push('paid is not swapped, returned and refunded')
  }
  const left = await balanceOf(chain, asset, desk)
  if (left !== 0n) faults.push(`the desk is left with ${left}`)
  const routed = await balanceOf(chain, asset, setup.stock.router)
  if (routed !== 0n) faults.push(`the router is left with ${routed}`)
  faults.push(...liesOf(rows, answers))
  const usdg = (amount: bigint) => (Number(amount) / 1e6).toFixed(2)
  const figures = {
    orders: rows.length,
    ...ends,
    held_and_retried: rows.length === 0 ? 0 : countRetried(setup),
    paid: usdg(sums.paid),
    swapped: usdg(sums.swapped),
    returned: usdg(sums.returned),
    refunded_usdg: usdg(sums.refunded),
    desk_change: usdg(left),
    faults: faults.length,
  }
  return { figures, faults }
}

async function auditOrder(audit: Audit, row: OrderRow): Promise<void> {
  const { sums, faults, into, out } = audit
  const { desk } = audit.setup
  const fault = (what: string) => void faults.push(`${row.id} ${row.state}: ${what}`)
  const total = BigInt(row.total_atomic)
  const paid = { transaction: row.settlement_tx, from: row.payer, to: desk, amount: total }
  const isPaid = take(audit, into, paid)
  if (isPaid === (row.state === 'failed')) fault(`paid: ${isPaid}`)
  if (isPaid) sums.paid += total
  if (row.state === 'delivered') await auditSwap(audit, row, fault)
  else if (row.state === 'refunded') {
    const transaction = row.refund_tx ?? '0x'
    const refund = { transaction, from: desk, to: row.payer, amount: total }
    if (take(audit, out, refund)) sums.refunded += total
    else fault('no refund of this amount')
  } else if (row.state !== 'failed') fault('is at no end')
}

async function auditSwap(
  audit: Audit,
  row: OrderRow,
  fault: (what: string) => void,
): Promise<void> {
  const { setup, moves, out, sums } = audit
  const { chain, desk } = setup
  const { router } = setup.stock
  const usdg = BigInt(row.usdg_atomic)
  const transaction = row.swap_tx ?? '0x'
  const through = await throughOf(chain, transaction)
  const swap = { transaction, from: desk, to: through, amount: usdg }
  const given = { transaction, from: through, to: router, amount: usdg }
  const [swapped, returned] = [row.pool, row.payer].map((to) =>
    sum(moves, { transaction, from: router, to }),
  ) as [bigint, bigint]
  if (!take(audit, out, swap) || !take(audit, moves, given)) fault('no swap of this amount')
  else if (swapped + returned !== usdg) fault('not all of it went to the pool or the payer')
  if (BigInt(row.returned_atomic ?? 0) !== returned) fault('not the change that was told')
  sums.swapped += swapped
  sums.returned += returned
  if (!(await isDelivered(setup, row))) fault('the shares are not those of the receipt')
}

/** Whether there is such a transfer that no order has explained yet; it is then explained. */
function take({ taken }: Audit, list: readonly Move[], wanted: Move): boolean {
  const found = list.find(
    (each) =>
      !taken.has(each) &&
      each.transaction === wanted.transaction &&
      each.amount === wanted.amount &&
      same(each.from, wanted.from) &&
      same(each.to, wanted.to),
  )
  if (found) taken.add(found)
  return found !== undefined
}

/** Answers that contradict the result of their order. */
function liesOf(rows: readonly OrderRow[], answers: ReadonlyMap<string, Told>): string[] {
  const states = new Map(rows.map((row) => [row.id, row.state]))
  return [...answers.values()].flatMap(({ status, orderId }) => {
    const state = states.get(orderId ?? '')
    const isTrue =
      (status === 200 && state === 'delivered') ||
      (status === 502 && state === 'refunded') ||
      // Nothing was taken for it, and nothing was paid.
      (orderId === undefined && status >= 400 && status < 500)
    return isTrue ? [] : [`${orderId} ${state} was told as ${status}`]
  })
}

type Move = { transaction: Hex; from: Address; to: Address; amount: bigint }

function sum(moves: readonly Move[], wanted: Omit<Move, 'amount'>): bigint {
  const { transaction, from, to } = wanted
  return moves
    .filter(
      (move) => move.transaction === transaction && same(move.from, from) && same(move.to, to),
    )
    .reduce((total, { amount }) => total + amount, 0n)
}

/** Every transfer of the asset to or from the desk or the router, from the first block on. */
async function movesOf({ chain, desk, stock }: StockSetup, asset: Address): Promise<Move[]> {
  const newest = Number(await chain.rpc('eth_blockNumber', []))
  const moves: Move[] = []
  for (let from = 0; from <= newest; from += 500) {
    const fromBlock = numberToHex(from)
    const toBlock = numberToHex(Math.min(newest, from + 499))
    const filter = { address: asset, topics: [Receipt.transferTopic], fromBlock, toBlock }
    for (const log of Receipt.parseLogs(await chain.rpc('eth_getLogs', [filter]))) {
      if (log.data.length !== 66) continue
      const [, sender = '', receiver = ''] = log.topics
      const move: Move = {
        transaction: log.transactionHash,
        from: `0x${sender.slice(26)}`,
        to: `0x${receiver.slice(26)}`,
        amount: BigInt(log.data),
      }
      const ends = [move.from, move.to]
      if (ends.some((each) => same(each, desk) || same(each, stock.router))) moves.push(move)
    }
  }
  return moves
}

async function isDelivered({ chain }: StockSetup, row: OrderRow): Promise<boolean> {
  const receipt = Receipt.parse(await chain.rpc('eth_getTransactionReceipt', [row.swap_tx]))
  const { token, pool: from, recipient: to } = row
  const [amount] = Receipt.transfersOf(receipt?.logs ?? [], { token, from, to })
  return amount === BigInt(row.delivered_atomic ?? 0) && amount >= BigInt(row.floor_atomic)
}

function countRetried({ rows }: StockSetup): number {
  return rows('SELECT id FROM orders WHERE refund_attempts > 1').length
}

function same(left: string, right: string): boolean {
  return left.toLowerCase() === right.toLowerCase()
}
