import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Config } from '../../src/config/Config'
import { format, parseConfig } from '../../src/config/merchants'
import { account } from '../../src/demo/accounts'
import type { Chain } from '../../src/demo/chains'

const file = join(import.meta.dir, '..', '..', 'merchants.toml')

/** Text of the merchants.toml that the checkout at `root` ships; this one without it. */
export function shippedText(root = join(import.meta.dir, '..', '..')): string {
  return readFileSync(join(root, 'merchants.toml'), 'utf8')
}

/**
 * The payee of all benchmarks: an address without an owner, because the configuration refuses
 * well-known accounts.
 */
export const payee = '0x00000000000000000000000000000000DeaDBeef'

/** Every name that the shipped file needs. */
export const shippedEnv = {
  RELAYER_KEYS: account(0).privateKey,
  PAYOUT: payee,
  ASSISTANT_KEY: 'bench',
}

/**
 * The shipped file on these RPC URLs by network id; throws with its faults. `more`: the text of
 * further merchants, and the upstream of those at model.example.com.
 */
export function shippedConfig(
  rpcUrls: Readonly<Record<string, string>> = {},
  more?: { text: string; upstream: string },
): Config {
  const { config, faults } = parseConfig(shippedText() + (more?.text ?? ''), {
    file,
    env: shippedEnv,
    overrides: {
      rpcUrls,
      baseUrl: 'http://localhost',
      listen: '127.0.0.1:0',
      // The discard port: no measured request reaches an upstream.
      upstream: (url) => {
        const isMore = more !== undefined && url.hostname === 'model.example.com'
        return new URL(url.pathname + url.search, isMore ? more.upstream : 'http://127.0.0.1:9')
      },
    },
  })
  if (config === undefined) throw new Error(faults.map(format).join('\n'))
  return config
}

/** RPC URLs by network id. */
export function rpcUrlsOf(chains: readonly Chain[]): Record<string, string> {
  return Object.fromEntries(chains.map((chain) => [`eip155:${chain.chainId}`, chain.url]))
}
