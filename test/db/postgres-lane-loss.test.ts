import { describe, expect, test } from 'bun:test'
import { DatabaseGoneError } from '../../db/postgres/errors'
import type { Lines } from '../../db/postgres/line-pool'
import { beginAt, cluster, payAt, relayerKeys, sellsAt } from '../harness/cluster'
import { hasPostgres } from '../harness/postgres'
import { until } from '../harness/settlement'

const [key] = relayerKeys
/** What is lost of a statement: it never reaches the database, or its answer does not come back. */
type Loss = 'statement' | 'answer' | undefined

/** Connections that lose statements as a test says. */
function losing() {
  const own = { lost: 0, loses: (_text: string): Loss => undefined, around }
  function around(lines: Lines): Lines {
    return {
      ...lines,
      run: (kind, work) =>
        lines.run(kind, (query) =>
          work(async (text, ...rest) => {
            const loss = own.loses(text)
            if (loss !== undefined) own.lost++
            if (loss !== 'statement') {
              const rows = await query<never>(text, ...rest)
              if (loss === undefined) return rows
            }
            throw new DatabaseGoneError('the connection was lost', { mayHaveRun: true })
          }),
        ),
    }
  }
  return own
}

const isTake = (text: string) => text.includes('SET holder = $3, epoch = epoch + 1')
const isGive = (text: string) => text.includes('SET holder = NULL')
const isUnfinished = (text: string) => text.includes("transactions.state IN ('signed', 'sent')")

describe.skipIf(!hasPostgres)('a lane when a connection is lost', () => {
  test('error: a lane whose take got no answer is taken again', async () => {
    await using own = await cluster()
    const { chain } = own
    const first = await own.start({ relayerKeys: [key] })
    const lines = losing()
    const second = await own.start({ relayerKeys: [key], lines: lines.around })
    // The answers of the first takes, of the keeper and of the account.
    lines.loses = (text) => (isTake(text) && lines.lost < 2 ? 'answer' : undefined)
    await own.leave(first)
    await until(() => sellsAt(second, chain))
    expect(lines.lost).toBe(2)
    expect((await payAt(second, chain, chain.sign())).kind).toBe('confirmed')
    expect(second.fenced).toEqual([])
  })

  test('error: a take whose reads and return fail is repeated', async () => {
    await using own = await cluster()
    const { chain } = own
    chain.node.onSend = () => 'keep'
    const first = await own.start({ relayerKeys: [key] })
    const paid = chain.sign()
    await beginAt(first, chain, paid)
    const lines = losing()
    const second = await own.start({ relayerKeys: [key], lines: lines.around })
    let reads = 0
    let returns = 0
    lines.loses = (text) => {
      if (isUnfinished(text) && reads++ === 0) return 'statement'
      return isGive(text) && returns++ === 0 ? 'statement' : undefined
    }
    await own.leave(first)
    await until(() => sellsAt(second, chain))
    expect(lines.lost).toBe(2)
    chain.chain.mine()
    await until(async () => (await second.settlement.find(paid))?.state === 'confirmed')
  })
})

describe.skipIf(!hasPostgres)('notifications of others', () => {
  test('attack: a notification that no gateway has sent is ignored', async () => {
    await using own = await cluster()
    const { chain } = own
    const process = await own.start({ relayerKeys: [key] })
    for (const payload of ['', 'x', 'null', '7', '{"payments":7}', '{"jobs":{}}'])
      await process.sql("SELECT pg_notify('turnpike', $1)", [payload])
    expect((await payAt(process, chain, chain.sign())).kind).toBe('confirmed')
    expect(process.faults).toEqual([])
  })
})
