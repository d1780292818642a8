import { expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Database } from '../../db/Database'
import { databaseOf } from '../../db/sqlite/ledger'
import { open } from '../../db/sqlite/open'
import * as App from '../../src/app'
import type { ServerContext } from '../../src/app/options'
import { createLog } from '../../src/log'
import { buy, startShop } from '../harness/shop'
import { until } from '../harness/world'

/**
 * A write to a server that is gone: whether it was committed is unknown until the server is back.
 */
const unknown = () => new Promise<never>(() => undefined)

/** A database that answers nothing about deliveries and counts of requests. */
function silent(context: ServerContext, closed: () => void): Database {
  const database = databaseOf(open(context))
  const { deliveries, sales } = database.ledger
  return {
    ...database,
    ledger: {
      ...database.ledger,
      deliveries: { ...deliveries, deliver: unknown },
      sales: { ...sales, addRequests: unknown },
    },
    async close() {
      await database.close()
      closed()
    },
  }
}

test('error: a stop ends although a server never answers the last writes', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-stop-'))
  const shop = await startShop()
  let isClosed = false
  const app = await App.start({
    config: { ...shop.config, service: { ...shop.config.service, stopSeconds: 0 } },
    secrets: shop.secrets,
    dataDir,
    openServer: async (context) =>
      silent(context, () => {
        isClosed = true
      }),
    log: createLog({ write: () => undefined, pretty: false }),
    blockTimeMs: 100,
    clockSkewMaxMs: Number.POSITIVE_INFINITY,
  })
  try {
    shop.upstream.script = (_, reply) => reply.send(200, 'goods')
    await until('it sells', () => app.settlement.isReady('eip155:8453'))
    const response = await buy(`${app.url}/m/shop/item`)
    expect([response.status, await response.text()]).toEqual([200, 'goods'])
    await app.stop()
    expect(isClosed).toBe(true)
  } finally {
    await shop.stop()
    rmSync(dataDir, { recursive: true, force: true })
  }
})
