import type { Database } from 'bun:sqlite'

/** Rows of every table of money, in each state that must survive an upgrade and a move. */
type Value = string | number | null
type Row = Readonly<Record<string, Value>>

const hash = (digit: string) => `0x${digit.repeat(64)}`
const account = (digit: string) => `0x${digit.repeat(40)}`

const money = {
  network: 'eip155:4663',
  chain_id: 4663,
  asset: account('5'),
  payer: account('7'),
  payee: account('1'),
  valid_after: '0',
  valid_before: '1700000300',
  signature: '0x00',
  merchant: 'weather',
  route: '/forecast',
  fingerprint: 'f',
  resource: 'http://localhost/',
  bound: 1,
  received_at: 1,
  known_block: 1,
  created_at: 1,
}
const payment = { ...money, method: 'eip3009', product: 'gateway', protocol: 'mpp' }
const confirmed = { state: 'confirmed', block_number: 7, confirmed_at: 2 }

const authorizations: readonly Row[] = [
  ['authorized', null, '4'],
  ['metered', '250', '5'],
  ['sent', '400', '6'],
  ['void', '0', '7'],
  ['failed', '90', '8'],
].map(([state = '', charge = null, digit = '']) => ({
  ...money,
  id: `upto_${state}`,
  ceiling_atomic: '1000',
  facilitator: account('9'),
  nonce: hash(digit ?? ''),
  product: 'gateway',
  credential_hash: 'a'.repeat(64),
  state,
  charge_atomic: charge,
  units: charge === null ? null : '{"answer":1}',
  failed_at: state === 'failed' ? 9 : null,
}))

const payments: readonly Row[] = [
  {
    ...payment,
    ...confirmed,
    id: 'pay_delivered',
    amount_atomic: '5000',
    nonce: hash('1'),
    transaction_hash: hash('a'),
    log_index: 0,
    delivery: 'delivered',
    attempts: 1,
    upstream_status: 200,
    delivered_at: 3,
    idempotency_key: 'key',
    answered: 1,
  },
  {
    ...payment,
    ...confirmed,
    id: 'pay_redeemable',
    protocol: 'x402',
    amount_atomic: '123456789012345678',
    nonce: hash('2'),
    transaction_hash: hash('b'),
    log_index: 3,
    attempts: 2,
    delivery: 'delivering',
    redeem_token_hash: 'r',
    redeem_until: 99,
    credential_hash: 'b'.repeat(64),
  },
  {
    ...payment,
    ...confirmed,
    id: 'upto_sent',
    method: 'permit2',
    protocol: 'x402',
    amount_atomic: '400',
    ceiling_atomic: '1000',
    facilitator: account('9'),
    nonce: hash('6'),
    transaction_hash: hash('c'),
    log_index: 1,
  },
  {
    ...payment,
    ...confirmed,
    id: 'pay_order',
    product: 'desk',
    amount_atomic: '2000000',
    nonce: hash('9'),
    transaction_hash: hash('d'),
    log_index: 0,
  },
  {
    ...payment,
    id: 'pay_broadcast',
    method: 'permit2',
    state: 'broadcast',
    amount_atomic: '700',
    nonce: hash('3'),
    transaction_hash: hash('e'),
    permit2612_value: '9',
    permit2612_deadline: '8',
    permit2612_signature: '0x01',
  },
  {
    ...payment,
    id: 'pay_reverted',
    product: 'facilitator',
    state: 'reverted',
    amount_atomic: '800',
    nonce: hash('a'),
    transaction_hash: hash('f'),
  },
  {
    ...payment,
    id: 'pay_expired',
    state: 'expired',
    amount_atomic: '900',
    nonce: hash('b'),
    transaction_hash: hash('f'),
    nonce_used: 1,
  },
]

/** A channel with a request under way, and what another one was charged. */
const channel = {
  id: hash('c'),
  ...{ network: 'eip155:4663', payer: account('7'), payer_authorizer: account('7') },
  ...{ receiver: account('1'), receiver_authorizer: account('6'), token: account('5') },
  ...{ withdraw_delay: 86_400, salt: hash('0'), charged_atomic: '123456789012345678' },
  ...{ signed_atomic: '123456789012345679', signature: '0x01', reserved_id: 'pay_next' },
  ...{ reserved_atomic: '123456789012345690', reserved_signature: '0x02' },
  ...{ reserved_fingerprint: 'f', reserved_at: 7, balance_atomic: '900000000000000000' },
  ...{ claimed_atomic: '5', refund_nonce: '1', synced_at: 6, used_at: 7, created_at: 5 },
}
const charge: Row = {
  ...payment,
  id: 'pay_channel',
  ...{ method: 'channel', protocol: 'x402', state: 'confirmed', confirmed_at: 2 },
  ...{ amount_atomic: '678', nonce: hash('c'), transaction_hash: channel.id },
  ...{ delivery: 'delivering', attempts: 1 },
}

const transaction = {
  network: 'eip155:4663',
  relayer: account('2'),
  to: account('5'),
  kind: 'payment',
  product: 'gateway',
  raw: '0x02',
  gas_limit: '90000',
  max_fee_wei: '12345678901234567890',
  max_tip_wei: '1',
  created_at: 5,
}
const transactions: readonly Row[] = [
  ['a', 'mined'],
  ['b', 'mined'],
  ['c', 'mined'],
  ['d', 'mined'],
  ['e', 'sent'],
  ['f', 'failed'],
  ['0', 'replaced'],
  ['1', 'signed'],
  ['2', 'mined'],
  ['3', 'sent'],
].map(([digit = '', state = ''], nonce) => ({
  ...transaction,
  hash: hash(digit),
  nonce,
  state,
  first_sent_at: state === 'signed' || state === 'replaced' ? null : 6,
  block_number: state === 'mined' || state === 'failed' ? 7 : null,
}))

const members: readonly Row[] = payments.map(({ id = '', transaction_hash = '' }, position) => ({
  transaction_hash,
  position,
  payment_id: id,
}))

const job = {
  product: 'desk',
  network: 'eip155:4663',
  relayer: account('2'),
  to: account('5'),
  value_wei: '1000000000000000000',
  created_at: 5,
}
const jobs: readonly Row[] = [
  {
    ...job,
    id: 'swap:1',
    kind: 'swap',
    nonce: 8,
    state: 'confirmed',
    transaction_hash: hash('2'),
    block_number: 7,
    receipt: '{}',
    ended_at: 8,
  },
  {
    ...job,
    id: 'refund:1',
    kind: 'refund',
    nonce: 9,
    state: 'broadcast',
    transaction_hash: hash('3'),
  },
]
const jobTransactions: readonly Row[] = jobs.map(({ id = '', transaction_hash = '' }) => ({
  job_id: id,
  transaction_hash,
}))

const order = {
  id: `ord_${'1'.repeat(32)}`,
  payment_id: 'pay_order',
  network: 'eip155:4663',
  symbol: 'NVDA',
  token: account('3'),
  pool: account('4'),
  pool_fee: 500,
  payer: account('7'),
  recipient: account('7'),
  usdg_atomic: '2000000',
  total_atomic: '2000000',
  quoted_atomic: '11000000000000000',
  floor_atomic: '10900000000000000',
  state: 'delivered',
  settlement_tx: hash('d'),
  swap_tx: hash('2'),
  delivered_atomic: '11000000000000001',
  returned_atomic: '17',
  created_at: 1,
  updated_at: 2,
  settled_at: 2,
}
const topUp = {
  network: 'eip155:4663',
  address: account('8'),
  transaction_hash: hash('5'),
  amount_wei: '7',
  fee_wei: '21000',
  created_at: 4,
}
const grant = {
  ...topUp,
  token: account('5'),
  kind: 'grant',
  transaction_hash: hash('4'),
  amount_wei: '300000000000000',
}

/** In an order that foreign keys and triggers accept. */
const tables: readonly (readonly [table: string, rows: readonly Row[]])[] = [
  ['authorizations', authorizations],
  ['payments', [...payments, charge]],
  ['channels', [channel]],
  [
    'answers',
    [
      {
        payment_id: 'pay_delivered',
        status: 200,
        headers: '[]',
        body: 'answer',
        created_at: 1,
        expires_at: 9,
      },
    ],
  ],
  ['transactions', transactions],
  ['transaction_members', members],
  ['jobs', jobs],
  ['job_transactions', jobTransactions],
  ['orders', [order]],
  ['grants', [grant]],
  ['grant_top_ups', [topUp]],
  [
    'gas_spent',
    [
      {
        network: 'eip155:4663',
        product: 'gateway',
        day: '2026-01-02',
        wei: '98765432109876543210',
        wasted_wei: '5',
      },
    ],
  ],
  [
    'offers',
    [
      {
        merchant: 'weather',
        route: '/forecast',
        network: 'eip155:4663',
        asset: account('5'),
        pay_to: account('1'),
        amount_atomic: '5000',
        retired_at: 3,
      },
    ],
  ],
  ['merchants', [{ slug: 'weather', title: 'W', hash: 'h', json: '{}', updated_at: 1 }]],
  ['meta', [{ key: 'kept', value: 'yes' }]],
]

/** Writes the rows into every table of them. */
export function fill(sqlite: Database): void {
  for (const [table, rows] of tables)
    for (const row of rows) {
      const names = Object.keys(row)
      sqlite.run(
        `INSERT INTO ${table} (${names.map((name) => `"${name}"`).join(', ')})
         VALUES (${names.map(() => '?').join(', ')})`,
        Object.values(row),
      )
    }
}

/** Columns that hold money. */
const amounts = /_atomic$|_wei$|^wei$/

/** All rows of a database: of each table its rows as objects, in the order of their text. */
export function read(sqlite: Database): Map<string, Row[]> {
  const names = sqlite
    .query<{ name: string }, []>("SELECT name FROM sqlite_schema WHERE type = 'table'")
    .all()
    .map(({ name }) => name)
    .filter((name) => name !== 'migrations' && !name.startsWith('sqlite_'))
  return new Map(
    names.map((table) => [table, sqlite.query<Row, []>(`SELECT * FROM ${table}`).all()]),
  )
}

/** Sums of each column of money, by table. */
export function sumsOf(all: ReadonlyMap<string, readonly Row[]>): Map<string, bigint> {
  const sums = new Map<string, bigint>()
  for (const [table, rows] of all)
    for (const row of rows)
      for (const [column, value] of Object.entries(row)) {
        if (!amounts.test(column) || value === null) continue
        const name = `${table}.${column}`
        sums.set(name, (sums.get(name) ?? 0n) + BigInt(value))
      }
  return sums
}
