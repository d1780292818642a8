import { afterAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import net, { type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openPostgres } from '../../db/postgres/open'
import { DatabaseStartError } from '../../db/postgres/reach'
import * as Url from '../../db/postgres/Url'
import { loadSecrets } from '../../src/config/env'
import { account } from '../../src/demo/accounts'
import { emptyDatabase, hasPostgres, sharedCluster } from '../harness/postgres'

/** A start whose connections to PostgreSQL are cut, one after the other. */

/** One connection to check the server, and the lines of a gateway. */
const connections = 7

const directory = mkdtempSync(join(tmpdir(), 'turnpike-cut-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

/** Passes bytes on to a server, except for the connection of that number (0: all pass). */
async function cutting(socket: string) {
  const state = { cut: 0, accepted: 0 }
  const listener = net.createServer((client) => {
    const isCut = ++state.accepted === state.cut
    const server = net.connect({ path: socket })
    client.on('error', () => undefined)
    server.on('error', () => undefined)
    client.on('data', (chunk) => void server.write(chunk))
    server.on('data', (chunk) => {
      if (isCut) client.destroy()
      else client.write(chunk)
    })
    client.on('close', () => void server.destroy())
    server.on('close', () => void client.destroy())
  })
  await new Promise<void>((resolve) => void listener.listen(0, '127.0.0.1', resolve))
  const { port } = listener.address() as AddressInfo
  return { state, port, stop: () => void listener.close() }
}

describe.skipIf(!hasPostgres)('a start during a cut', () => {
  test('error: whichever connection is cut, the message names the database', async () => {
    const database = new URL(await emptyDatabase()).pathname.slice(1)
    const cluster = await sharedCluster()
    const proxy = await cutting(join(cluster.directory, `.s.PGSQL.${cluster.port}`))
    const secrets = loadSecrets({
      dataDir: directory,
      env: {
        RELAYER_KEYS: account(5).privateKey,
        RECEIPT_KEY: '11'.repeat(32),
        CHALLENGE_SECRETS: '22'.repeat(32),
        ADMIN_TOKEN: 'an-admin-token-of-mine',
      },
      isShared: true,
    })
    const start = (cut: number) => {
      Object.assign(proxy.state, { cut, accepted: 0 })
      return openPostgres({
        target: Url.parse(
          `postgres://postgres@127.0.0.1:${proxy.port}/${database}?sslmode=disable`,
        ),
        secrets,
        dataDir: directory,
        program: undefined,
        now: Date.now,
        monotonic: () => performance.now(),
        log: () => undefined,
        warn: () => undefined,
        onFenced: () => undefined,
        tests: { acceptsLoss: true, acceptsSkew: true },
      })
    }
    const whole = await start(0)
    expect(proxy.state.accepted).toBe(connections)
    await whole.close()
    for (let cut = 1; cut <= connections; cut++) {
      const error = await start(cut).catch((reason: unknown) => reason)
      expect([cut, error]).toEqual([cut, expect.any(DatabaseStartError)])
      expect((error as Error).message).toStartWith(`PostgreSQL at 127.0.0.1:${proxy.port}`)
    }
    proxy.stop()
  })
})
