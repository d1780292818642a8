import { describe, expect, test } from 'bun:test'
import { searchFunctions } from '../../db/postgres/functions'
import { openLines } from '../../db/postgres/lines'
import { restoreLane } from '../../db/postgres/restore'
import { gatewayDatabase, hasPostgres } from '../harness/postgres'
import { freshNetwork, paymentRow, relayer, transactionRow } from '../harness/settling-rows'

/** A lane that a failover reset, and its holder with the unfinished work in its memory. */
async function lane() {
  const lines = await openLines({
    servers: [{ connectionString: await gatewayDatabase() }],
    name: 'test',
    session: () => [searchFunctions()],
    monotonic: () => performance.now(),
  })
  const sql = <Row>(text: string, values?: readonly unknown[]) =>
    lines.run('read', (query) => query<Row>(text, values))
  const network = freshNetwork()
  const id = crypto.randomUUID()
  await sql('INSERT INTO gateways (id) VALUES ($1)', [id])
  await sql(
    'INSERT INTO lanes (network, relayer, holder, epoch, next_nonce) VALUES ($1, $2, $3, 4, 1)',
    [...[network, relayer, id]],
  )
  const slot = () => {
    const transaction = transactionRow(network)
    return {
      transactions: [transaction],
      payments: [{ row: paymentRow(transaction) }],
      job: undefined,
    }
  }
  const restore = (slots: Parameters<typeof restoreLane>[2]['slots']) =>
    lines.run('beat', (query) =>
      restoreLane(
        query,
        { network, relayer, holder: id, epoch: 4, next_nonce: 1 },
        { held: { epoch: 5, next_nonce: 9 }, id, slots },
      ),
    )
  return { network, sql, slot, restore, [Symbol.asyncDispose]: async () => lines.close() }
}

const raised = { epoch: 6, next_nonce: 9 }

describe.skipIf(!hasPostgres)('a lane that a failover put back', () => {
  test('attack: money that was authorized again meanwhile does not keep the rest from being written', async () => {
    await using own = await lane()
    const [signed, other] = [own.slot(), own.slot()]
    const [{ row }] = signed.payments as [(typeof signed.payments)[0]]
    const { network, asset, payer, payee, nonce } = row
    const authorization = {
      ...{ id: 'pay_000000000001', network, chain_id: row.chainId, asset, payer, payee, nonce },
      ...{
        ceiling_atomic: '9',
        facilitator: relayer,
        valid_after: '0',
        valid_before: '9999999999',
      },
      ...{ signature: '0x11', product: 'gateway', merchant: 'm', route: '/r', fingerprint: 'f' },
      ...{ resource: 'http://localhost/', bound: false, received_at: 1, known_block: 1 },
      ...{ state: 'authorized', is_delivered: false, truncated: false, created_at: 1 },
    }
    await own.sql(
      'INSERT INTO authorizations SELECT * FROM jsonb_populate_record(NULL::authorizations, $1)',
      [JSON.stringify(authorization)],
    )
    expect(await own.restore([signed, other])).toEqual(raised)
    const ids = await own.sql<{ id: string }>('SELECT id FROM payments')
    expect(ids.map(({ id }) => id)).toEqual(other.payments.map((each) => each.row.id))
    const sent = await own.sql<{ hash: string }>('SELECT hash FROM transactions ORDER BY hash')
    const hashes = [signed, other].flatMap(({ transactions }) =>
      transactions.map(({ hash }) => hash),
    )
    expect(sent.map(({ hash }) => hash)).toEqual(hashes.toSorted())
  })
})
