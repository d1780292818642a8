import { expect, test } from 'bun:test'
import { createHealth, type HealthSources } from '../../src/http/health'

test('readyz shows the server, and names a clock that differs', async () => {
  const sources: HealthSources = {
    canSell: () => true,
    networks: () => [],
    merchantsOutOfService: () => [],
    spentBudgets: async () => [],
    openCircuits: () => [],
    storageFaults: () => [],
    certificateFaults: () => [],
  }
  const ask = async (database?: HealthSources['database']) => {
    const answer = await createHealth({ ...sources, ...(database && { database }) }).readyz()
    return [answer.status, await answer.json()]
  }
  const none = { networks: [], merchants: [], sponsor: [], circuits: [] }
  const notReady = { ...none, storage: [], certificates: [] }
  expect(await ask()).toEqual([200, { status: 'ok', notReady, networks: [] }])
  const server = { aheadMs: () => 12.4, reason: () => undefined, standby: () => 'sync' }
  expect(await ask(server)).toEqual([
    200,
    {
      status: 'ok',
      notReady: { ...notReady, database: [] },
      networks: [],
      database: { standby: 'sync', clockAheadMs: 12 },
    },
  ])
  expect(await ask({ ...server, reason: () => 'the clock' })).toEqual([
    503,
    expect.objectContaining({ notReady: { ...notReady, database: [{ reason: 'the clock' }] } }),
  ])
})
