import type { Ledger } from '../../db/Ledger'
import { states as orderStates } from '../../db/Order'
import { account } from '../../src/demo/accounts'
import type { Random } from '../soak/random'

/** Random rows of money in all its states, as the ledger writes them, for any database. */
export type Rows = readonly (readonly [table: string, row: Row])[]
type Row = Readonly<Record<string, string | number | boolean | null | Uint8Array>>

export const networks = ['eip155:8453', 'eip155:4663', 'eip155:42161'] as const
const assetOf = [
  '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
  '0x5FbDB2315678afecb367f032d93F642f64180aa3',
  '0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512',
] as const
export const payers = [1, 2, 3, 4, 5].map((index) => account(index).address)
const payees = [6, 7, 8].map((index) => account(index).address)
const relayer = account(0).address
export const hourMs = 3_600_000
const dayMs = 24 * hourMs
/** Begin of the time in which the rows are. */
export const begin = Date.parse('2026-11-20T00:00:00Z')
export const spanMs = 4 * hourMs

type World = { random: Random; rows: [string, Row][]; serial: number; nonce: number }

/** Transactions with and without payments, orders, grants, charges and answers. */
export function randomRows(random: Random): Rows {
  const world: World = { random, rows: [], serial: 0, nonce: 0 }
  for (let each = 0; each < 12; each++) addBatch(world)
  for (let each = 0; each < 10; each++) addOrder(world)
  for (let each = 0; each < 12; each++) addAuthorization(world)
  for (let each = 0; each < 6; each++) addOther(world)
  addGrants(world)
  return world.rows
}

/** What the ledger describes: own accounts, assets, and counts of requests. */
export async function describeRows({ sales }: Pick<Ledger, 'sales'>, random: Random) {
  const assets = networks.map((network, index) => ({
    network,
    address: assetOf[index] ?? assetOf[0],
    networkName: `Network ${index}`,
    symbol: 'USDC',
    decimals: 6,
    coinUsd: '4000',
  }))
  await sales.describe({ accounts: [relayer], assets: assets.slice(0, 2), now: begin })
  const [first, second] = payers
  if (first === undefined || second === undefined) throw new Error('no payers')
  // The same account in another letter case, and the same asset described twice.
  const again = [first, first.toLowerCase() as typeof first]
  const last = assets
    .slice(1)
    .map((each) => ({ ...each, networkName: `${each.networkName} again` }))
  await sales.describe({ accounts: again, assets: [...assets.slice(1), ...last], now: begin + 1 })
  for (let hour = begin - hourMs; hour < begin + spanMs; hour += hourMs) {
    for (let times = random.between(0, 3); times > 0; times--) {
      const counts = [0, 1, 2].flatMap(() => (random.chance(0.7) ? [countsOf(random)] : []))
      const day = hour - (hour % dayMs)
      await sales.addRequests(day, counts, random.chance(0.2) ? day : 0)
    }
  }
}

function countsOf(random: Random) {
  return {
    merchant: random.pick(['shop', 'other', 'stock']),
    route: random.pick(['/a', '/B', '/b/c']),
    client: random.pick(['browser', 'curl'] as const),
    ...random.pick([
      { step: 'asked', detail: '' },
      { step: 'tried', detail: 'x402' },
      { step: 'refused', detail: 'rate-limited' },
      { step: 'free', detail: 'pass' },
    ] as const),
    times: random.between(0, 50),
  }
}

/** Amounts up to a sum that an INTEGER holds, and some above 2^53. */
function amountOf({ random }: World): string {
  return random.chance(0.2)
    ? String(9_007_199_254_740_993n + BigInt(random.between(0, 9)))
    : String(random.between(1, 1_000_000))
}

/** Costs whose sum is above 2^63, unknown ones, and remainders of every size. */
function costOf({ random }: World): string | null {
  if (random.chance(0.1)) return null
  return random.chance(0.3)
    ? String(4_000_000_000_000_000_000n + BigInt(random.between(0, 1_000_000)))
    : String(random.between(0, 1_000))
}

function timeOf({ random }: World): number {
  // Several rows have the same time.
  return begin + random.between(0, 40) * Math.floor(spanMs / 40)
}

function add(world: World, table: string, row: Row): void {
  world.rows.push([table, row])
}

function addTransaction(world: World, changes: Row): string {
  const hash = world.random.bytes32()
  const state = world.random.pick(['mined', 'mined', 'failed', 'sent', 'replaced'])
  const isIn = state === 'mined' || state === 'failed'
  const at = timeOf(world)
  add(world, 'transactions', {
    hash,
    ...{ network: networks[0], relayer, nonce: world.nonce++, kind: 'payment', product: 'gateway' },
    ...{ to: assetOf[0], raw: '0x02', gas_limit: '1', max_fee_wei: '5', max_tip_wei: '1', state },
    ...{ created_at: at, first_sent_at: state === 'replaced' ? null : at + 1 },
    ...{ block_number: isIn ? world.random.between(1, 99) : null },
    cost_wei: isIn ? costOf(world) : null,
    ...changes,
  })
  return hash
}

type PaymentOptions = { network: string; hash: string; logIndex: number; changes?: Row }

/** A payment in a random state. Returns its id. */
function addPayment(world: World, { network, hash, logIndex, changes }: PaymentOptions): string {
  const { random } = world
  const at = timeOf(world)
  const id = `pay_${at.toString(16).padStart(12, '0')}${random.bytes32().slice(2, 22)}`
  const state = random.pick([
    'confirmed',
    'confirmed',
    'confirmed',
    'broadcast',
    'reverted',
    'expired',
  ])
  const isIn = state === 'confirmed'
  const delivery = isIn ? random.pick(['none', 'delivering', 'delivered']) : 'none'
  const attempts = random.between(delivery === 'none' ? 0 : 1, 13)
  const isRedeemable = random.chance(0.5)
  const key = random.chance(0.3) ? `key-${world.serial}` : null
  const amount = amountOf(world)
  const product = random.pick(['gateway', 'facilitator'])
  add(world, 'payments', {
    ...{ id, method: 'eip3009', network, chain_id: Number(network.slice(7)) },
    ...{ asset: assetAt(network), payer: random.pick(payers), payee: random.pick(payees) },
    ...{ amount_atomic: amount, nonce: random.bytes32(), valid_after: '0' },
    ...{ valid_before: '1', signature: '0x', product },
    ...{ protocol: random.pick(['mpp', 'x402']), merchant: random.pick(['shop', 'other', '']) },
    ...{ route: random.pick(['/a', '/B', '/b/c']), fingerprint: 'f', resource: 'r' },
    ...{ idempotency_key: key, challenge_id: null, credential_hash: null, bound: true },
    client: random.pick([null, 'curl', 'browser']),
    ...{ received_at: at, known_block: 1, state, transaction_hash: hash },
    ...{ log_index: isIn ? logIndex : null, block_number: isIn ? 5 : null, delivery, attempts },
    ...{ upstream_status: random.chance(0.5) ? 200 : null, truncated: false, answered: true },
    redeem_token_hash: isRedeemable ? random.bytes32().slice(2) : null,
    redeem_until: isRedeemable ? begin + random.between(0, 2) * spanMs : null,
    ...{ nonce_used: false, created_at: at, confirmed_at: isIn ? at + 5 : null },
    delivered_at: delivery === 'delivered' ? at + 9 : null,
    ...changes,
  })
  world.serial++
  if (random.chance(0.2)) addAnswer(world, id, at)
  const isSale = isIn && (changes?.product ?? product) === 'gateway'
  if (isSale && random.chance(0.4)) addRefund(world, id, amount)
  return id
}

/** The money of a payment goes back, or a part of it, or it has failed to. */
function addRefund(world: World, id: string, amount: string): void {
  const { random } = world
  const paid = random.chance(0.7) ? random.bytes32() : null
  add(world, 'refunds', {
    ...{ payment_id: id, account: payees[0] ?? '', amount_atomic: random.pick([amount, '1']) },
    ...{ reason: 'operator', note: null, attempts: 1, paid_hash: paid, created_at: begin },
  })
  addJob(world, `repay:${id}:1`, networks[0])
}

function assetAt(network: string): string {
  return assetOf[(networks as readonly string[]).indexOf(network)] ?? assetOf[0]
}

function addAnswer({ rows, random }: World, id: string, at: number): void {
  const body = new Uint8Array(random.between(0, 300))
  const times = { created_at: at, expires_at: at + 1 + random.between(0, 99) }
  rows.push(['answers', { payment_id: id, status: 200, headers: '[]', body, ...times }])
}

/** A transaction with some payments, an earlier one that it replaced, or none at all. */
function addBatch(world: World): void {
  const { random } = world
  const network = random.pick(networks)
  const size = random.between(1, 5)
  const kind = size === 1 ? 'payment' : 'batch'
  const hash = addTransaction(world, { network, kind })
  const others = random.chance(0.3) ? [addTransaction(world, { network, kind })] : []
  const ids = Array.from({ length: size }, (_, logIndex) =>
    addPayment(world, { network, hash, logIndex }),
  )
  // An external transaction has no row, and its payment no members.
  if (random.chance(0.15)) {
    addPayment(world, { network, hash: random.bytes32(), logIndex: 7 })
  }
  for (const each of [hash, ...others])
    ids.forEach((id, position) => {
      add(world, 'transaction_members', { transaction_hash: each, position, payment_id: id })
    })
}

function addOrder(world: World): void {
  const { random } = world
  const network = random.pick(networks)
  const hash = addTransaction(world, { network })
  const changes = { product: 'desk', merchant: '', route: 'AAPL' }
  const paymentId = addPayment(world, { network, hash, logIndex: 0, changes })
  add(world, 'transaction_members', { transaction_hash: hash, position: 0, payment_id: paymentId })
  const id = `ord_${random.bytes32().slice(2, 34)}`
  const state = random.pick(orderStates)
  const isSwapped = ['swapping', 'delivered', 'refunded', 'refunding'].includes(state)
  const isRefund = state === 'refunded' || state === 'refunding'
  const refundTx = state === 'refunded' ? random.bytes32() : null
  add(world, 'orders', {
    ...{ id, payment_id: paymentId, network, symbol: 'AAPL', token: assetOf[2], pool: assetOf[1] },
    ...{ pool_fee: 500, payer: random.pick(payers), recipient: random.pick(payers) },
    ...{ usdg_atomic: amountOf(world), total_atomic: amountOf(world), quoted_atomic: '9' },
    ...{ floor_atomic: '8', state, settlement_tx: hash },
    ...{ swap_tx: isSwapped ? random.bytes32() : null, refund_tx: refundTx },
    delivered_atomic: state === 'delivered' ? '9' : null,
    returned_atomic: state === 'delivered' && random.chance(0.5) ? '7' : null,
    refund_reason: isRefund ? 'below-floor' : null,
    held_reason: state === 'held' ? 'refund-failed' : null,
    ...{ refund_attempts: isRefund ? 1 : 0, retry_at: null, created_at: begin },
    ...{ updated_at: begin, settled_at: ['settling', 'failed'].includes(state) ? null : begin },
  })
  for (const job of [`swap:${id}`, `refund:${id}:1`, `refund:${id}:2`])
    if (random.chance(0.6)) addJob(world, job, network)
}

/** A job and its transactions, of which some replaced others. */
function addJob(world: World, id: string, network: string): void {
  const { random } = world
  const kind = id.startsWith('swap') ? 'swap' : 'refund'
  const hashes = Array.from({ length: random.between(1, 2) }, () =>
    addTransaction(world, { network, kind, product: 'desk' }),
  )
  add(world, 'jobs', {
    ...{ id, kind, product: 'desk', network, relayer, nonce: world.nonce++, to: assetOf[0] },
    ...{ value_wei: '0', state: 'broadcast', transaction_hash: hashes[0] ?? '', created_at: begin },
    ...{ block_number: null, receipt: null, ended_at: null },
  })
  for (const hash of hashes) add(world, 'job_transactions', { job_id: id, transaction_hash: hash })
}

function addAuthorization(world: World): void {
  const { random } = world
  const network = random.pick(networks)
  const at = timeOf(world)
  const state = random.pick(['authorized', 'metered', 'failed', 'void', 'metered', 'failed'])
  const amount = state === 'void' ? '0' : String(random.between(1, 9_000))
  const charge = state === 'authorized' ? null : amount
  const id = `pay_${at.toString(16).padStart(12, '0')}${random.bytes32().slice(2, 22)}`
  add(world, 'authorizations', {
    ...{ id, network, chain_id: Number(network.slice(7)), asset: assetAt(network) },
    ...{ payer: random.pick(payers), payee: random.pick(payees), ceiling_atomic: '10000' },
    ...{ facilitator: relayer, nonce: random.bytes32(), valid_after: '0', valid_before: '1' },
    ...{ signature: '0x', product: random.pick(['gateway', 'facilitator']) },
    ...{ merchant: random.pick(['shop', 'other']), route: random.pick(['/a', '/u']) },
    ...{ fingerprint: 'f', resource: 'r', bound: true, received_at: at, known_block: 1, state },
    ...{ charge_atomic: charge, units: charge === null ? null : '{}', is_delivered: false },
    ...{ truncated: false, failed_at: state === 'failed' ? at : null, created_at: at },
  })
}

/** Transactions without payment and order. */
function addOther(world: World): void {
  const kind = world.random.pick(['grant', 'approve', 'cancel'])
  addTransaction(world, { network: world.random.pick(networks), kind, product: 'sponsor' })
}

function addGrants(world: World): void {
  const { random } = world
  for (const network of networks)
    for (const address of payers) {
      if (random.chance(0.4)) continue
      const isApproval = random.chance(0.5)
      const facts = { network, address, amount_wei: amountOf(world), fee_wei: '3' }
      const times = { transaction_hash: random.bytes32(), created_at: timeOf(world) }
      add(world, 'grants', {
        ...{ ...facts, ...times, token: assetOf[0], kind: isApproval ? 'approval' : 'grant' },
        approve_hash: isApproval ? random.bytes32() : null,
      })
      const topUp = { transaction_hash: random.bytes32(), created_at: timeOf(world) }
      if (random.chance(0.3)) add(world, 'grant_top_ups', { ...facts, ...topUp })
    }
}
