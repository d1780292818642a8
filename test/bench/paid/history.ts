import { open } from '../../../db/sqlite/open'
import { account } from '../../../src/demo/accounts'
import { network } from './network'

/** Members of one old transaction. */
const batchSize = 20

/**
 * A data directory with that many old payments: confirmed, delivered, each a member of a mined
 * batch of a relayer that is no longer used.
 */
export function fill(dataDir: string, count: number): void {
  const db = open({ dataDir, now: Date.now })
  const { id, chainId, asset } = network()
  const relayer = account(8).address
  // Like hashes: neighbours in time are not neighbours in an index.
  const random = (size: number) => `'0x' || lower(hex(randomblob(${size})))`
  const numbers = (most: number) =>
    `WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < ${most - 1})`
  const batches = Math.ceil(count / batchSize)
  db.sqlite.run('PRAGMA synchronous = OFF')
  db.sqlite.run('PRAGMA cache_size = -524288')
  db.sqlite.transaction(() => {
    db.sqlite.run(`${numbers(batches)}
      INSERT INTO transactions (hash, network, relayer, nonce, kind, product, "to", raw, gas_limit,
        max_fee_wei, max_tip_wei, state, created_at, first_sent_at, block_number)
      SELECT ${random(32)}, '${id}', '${relayer}', n, 'batch', 'gateway', '${asset.address}',
        '0x02' || lower(hex(zeroblob(${batchSize * 300}))), '1500000', '2000000000', '1000000',
        'mined', 1700000000000 + n, 1700000000000 + n, 1 FROM numbers`)
    db.sqlite.run(`${numbers(count)}
      INSERT INTO payments (id, method, network, chain_id, asset, payer, payee, amount_atomic, nonce,
        valid_after, valid_before, signature, product, protocol, merchant, route, fingerprint,
        resource, bound, received_at, known_block, state, transaction_hash, log_index, block_number,
        delivery, attempts, upstream_status, answered, created_at, confirmed_at, delivered_at)
      SELECT 'old-' || n, 'eip3009', '${id}', ${chainId}, '${asset.address}',
        ${random(20)}, '${account(7).address}', '10000', ${random(32)}, '0', '1700000300',
        '0x' || lower(hex(zeroblob(65))), 'gateway', 'mpp', 'catjoke', '/joke',
        ${random(32)}, 'http://localhost:4020/m/catjoke/joke', 1, 1700000000000 + n, 1, 'confirmed',
        (SELECT hash FROM transactions WHERE nonce = numbers.n / ${batchSize} AND relayer = '${relayer}' AND network = '${id}'),
        (n % ${batchSize}) * 2, 1, 'delivered', 1, 200, 1, 1700000000000 + n, 1700000000000 + n,
        1700000000000 + n FROM numbers`)
    db.sqlite.run(`INSERT INTO transaction_members (transaction_hash, position, payment_id)
      SELECT transaction_hash, log_index / 2, id FROM payments`)
  })()
  db.sqlite.run('PRAGMA wal_checkpoint(TRUNCATE)')
  db.close()
}

/** Removes the rows of a sample: its chain has ended, so they would look reorganised. */
export function forget(dataDir: string): void {
  const db = open({ dataDir, now: Date.now })
  const recent = `SELECT hash FROM transactions WHERE relayer <> '${account(8).address}'`
  db.sqlite.transaction(() => {
    db.sqlite.run(`DELETE FROM transaction_members WHERE transaction_hash IN (${recent})`)
    db.sqlite.run(`DELETE FROM answers`)
    db.sqlite.run(`DELETE FROM payments WHERE id NOT LIKE 'old-%'`)
    db.sqlite.run(`DELETE FROM transactions WHERE hash IN (${recent})`)
  })()
  db.sqlite.run('PRAGMA wal_checkpoint(TRUNCATE)')
  db.close()
}
