import { describe, expect, test } from 'bun:test'
import type { Lane } from '../../db/LaneLedger'
import { gateways } from '../../src/cli/operate/gateways'
import { account } from '../../src/demo/accounts'
import { exitCode } from '../harness/command'
import { startGateway } from '../harness/gateway-pair'
import { gatewayDatabase, hasPostgres } from '../harness/postgres'
import { until } from '../harness/world'

/** `turnpike gateways`, on what two gateways have written. */

const network = 'eip155:8453'
const relayer = account(5).address
const lanes: Lane[] = [
  { network, relayer: undefined },
  { network, relayer },
]
const listener = {
  taken: async () => undefined,
  release: () => true,
  keep: () => undefined,
  driven: () => [],
}

async function run(env: Record<string, string>, json = false) {
  const lines: string[] = []
  const code = await exitCode(gateways, { env, json, out: (line) => void lines.push(line) })
  return { code, text: lines.join('\n') }
}

describe('turnpike gateways', () => {
  test('error: turnpike gateways reports a missing DATABASE_URL', async () => {
    expect(await run({})).toEqual({
      code: 1,
      text: 'turnpike: DATABASE_URL is not set: without it one process serves, and there is nothing to list',
    })
  })

  test.skipIf(!hasPostgres)(
    'turnpike gateways lists processes and lanes, as JSON and as lines',
    async () => {
      const url = await gatewayDatabase()
      const env = { DATABASE_URL: url }
      const none = await run(env)
      expect([none.code, none.text]).toEqual([0, expect.stringContaining('no gateway serves')])
      let hash = 'aaaaaaaa11'
      const options = { now: Date.now, configHash: () => hash }
      const first = await startGateway(url, options)
      const second = await startGateway(url, { now: Date.now, configHash: () => 'aaaaaaaa11' })
      try {
        await first.ledger.lanes.start(lanes, listener)
        await second.ledger.lanes.start(lanes, listener)
        const { code, text } = await run(env, true)
        expect([code, JSON.parse(text)]).toEqual([
          0,
          {
            gateways: expect.arrayContaining(
              [first, second].map(({ id }) => ({
                ...{ id, host: 'test', version: '1.2.3', configHash: 'aaaaaaaa11' },
                seenMsAgo: expect.any(Number),
              })),
            ),
            lanes: [
              { network, relayer, holder: first.id, epoch: 1, nextNonce: 0 },
              { network, relayer: 'keeper', holder: first.id, epoch: 1, nextNonce: null },
            ],
          },
        ])
        const before = await run(env)
        expect(before.text).toContain(`${first.id}  test  1.2.3    aaaaaaaa       `)
        expect(before.text).toContain(
          `${network}  ${relayer}  ${first.id.slice(0, 8)} test  1      0`,
        )
        expect(before.text).toContain(`keeper  `)
        expect(before.text).not.toContain('differ')
        // As after a reload: the next sign of life tells it.
        hash = 'bbbbbbbb22'
        await until('the other configuration is seen', async () =>
          (await run(env)).text.includes('the configurations differ'),
        )
        await first.leave()
        const freed = JSON.parse((await run(env, true)).text)
        expect(freed.gateways).toMatchObject([{ id: second.id }])
      } finally {
        await first.leave()
        await second.leave()
      }
    },
  )
})
