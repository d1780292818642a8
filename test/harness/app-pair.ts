import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openPostgres } from '../../db/postgres/open'
import * as Url from '../../db/postgres/Url'
import * as App from '../../src/app'
import type { Config } from '../../src/config/Config'
import { loadSecrets } from '../../src/config/env'
import { account } from '../../src/demo/accounts'
import { createLog } from '../../src/log'
import { emptyDatabase } from './postgres'
import { until } from './world'

/** Two whole gateways over one database. */
export type AppPair = {
  apps: readonly [App.App, App.App]
  stop(): Promise<void>
}

/** Starts both; resolves when they sell. `aheadMs`: how far the clock of the first one is ahead. */
export async function startAppPair(
  config: Config,
  aheadMs: () => number = () => 0,
): Promise<AppPair> {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-pair-'))
  const url = await emptyDatabase()
  const env = {
    RELAYER_KEYS: [5, 6].map((index) => account(index).privateKey).join(),
    RECEIPT_KEY: '11'.repeat(32),
    CHALLENGE_SECRETS: '22'.repeat(32),
    RECEIVER_AUTHORIZER_KEY: '33'.repeat(32),
    ADMIN_TOKEN: 'an-admin-token-of-mine',
  }
  const start = (name: string, now: () => number) => {
    const dataDir = join(directory, name)
    mkdirSync(dataDir)
    const secrets = loadSecrets({ dataDir: directory, env, isShared: true })
    return App.start({
      ...{ config, secrets, dataDir, now },
      openServer: (context) =>
        openPostgres({
          ...context,
          target: Url.parse(url),
          secrets,
          warn: () => undefined,
          onFenced: () => undefined,
          tests: { acceptsLoss: true },
        }),
      log: createLog({ write: () => undefined, pretty: false }),
      blockTimeMs: 100,
      clockSkewMaxMs: Number.POSITIVE_INFINITY,
    })
  }
  const one = await start('a', () => Date.now() + aheadMs())
  const apps = [one, await start('b', Date.now)] as const
  await until('both gateways sell', () =>
    apps.every(({ settlement }) => settlement.isReady('eip155:8453')),
  )
  return {
    apps,
    async stop() {
      await Promise.all(apps.map((app) => app.stop()))
      rmSync(directory, { recursive: true, force: true })
    },
  }
}
