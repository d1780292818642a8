import { describe, expect, test } from 'bun:test'
import { authorizationOf } from '../harness/authorizations'
import { beginAt, cluster, payAt, relayerKeys } from '../harness/cluster'
import { startFailover } from '../harness/failover'
import { startGateway } from '../harness/gateway-pair'
import { hasPostgres } from '../harness/postgres'
import { until } from '../harness/settlement'

const [key] = relayerKeys

describe.skipIf(!hasPostgres)('a failover to a server that lacks the last commits', () => {
  test('error: a gateway whose commits are lost ends, and sends nothing more', async () => {
    await using server = await startFailover()
    await using own = await cluster(server.url)
    const { chain } = own
    const gateway = await own.start({ relayerKeys: [key], checkMs: 20 })
    expect((await payAt(gateway, chain, chain.sign())).kind).toBe('confirmed')
    await server.copy()
    chain.node.onSend = () => 'keep'
    await beginAt(gateway, chain, chain.sign({ from: 2 }))
    await server.failOver()
    await until(() => gateway.wentBack.length > 0)
    await until(() => gateway.ledger.fault() === undefined)
    const hashes = () => new Set(chain.node.sends.map(({ hash }) => hash)).size
    const sent = hashes()
    const refused = await payAt(gateway, chain, chain.sign({ from: 3 }))
    expect(refused).toMatchObject({ kind: 'unavailable' })
    expect([hashes(), gateway.fenced]).toEqual([sent, []])
  })
})

describe.skipIf(!hasPostgres)('a crash of the server under a gateway that lives', () => {
  test('attack: a ceiling whose answer is being made is not free for another answer', async () => {
    // A commit that waits for no disk would be lost.
    await using server = await startFailover({ wal_writer_delay: '10000ms' })
    const gateway = await startGateway(server.url, { now: Date.now })
    try {
      const { authorizations } = gateway.ledger
      const [sold, metered] = [authorizationOf(), authorizationOf()]
      for (const each of [sold, metered]) expect(await authorizations.insert(each)).toBe('stored')
      const charge = { amountAtomic: 70n, units: { input: 7 } }
      expect(await authorizations.meter(metered.id, charge, undefined)).toBe(true)
      await server.crash()
      const again = { ...sold, id: authorizationOf().id }
      const found = () =>
        Promise.all([
          ...[sold, metered].map(async ({ id }) => (await authorizations.findById(id))?.state),
          authorizations.insert(again),
        ])
      // Repeat it until the gateway has connected again.
      let states: unknown
      await until(async () => {
        states = await found().catch(() => undefined)
        return states !== undefined
      })
      expect(states).toEqual(['authorized', 'metered', 'known'])
    } finally {
      await gateway.leave()
    }
  })
})
