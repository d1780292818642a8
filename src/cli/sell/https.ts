import { readFileSync } from 'node:fs'
import type { HttpsOptions } from '../../app/options'
import { parseDomains } from '../../config/domains'
import { codeOf, type Env, EnvironmentError, readEnv } from '../../config/env'
import type { Run } from '../commands'

type Flags = Pick<Run<'serve'>, 'domain' | 'https-port' | 'http-port'>

const letsEncrypt = 'https://acme-v02.api.letsencrypt.org/directory'

/**
 * How HTTPS is served; undefined without `--domain`. Throws `EnvironmentError` for a wrong flag or a
 * wrong variable.
 */
export function readHttps(flags: Flags, env: Env): HttpsOptions | undefined {
  const { domain } = flags
  if (domain === undefined) {
    for (const name of ['https-port', 'http-port'] as const)
      if (flags[name] !== undefined) throw new EnvironmentError(`--${name} needs --domain`)
    return undefined
  }
  if (process.platform === 'win32')
    throw new EnvironmentError('--domain needs Linux or macOS: put a proxy with TLS in front here')
  const lookup = readEnv(env)
  return {
    domains: domainsOf(domain),
    httpsPort: portOf(flags, 'https-port', 443),
    httpPort: portOf(flags, 'http-port', 80),
    directoryUrl: directoryOf(lookup('ACME_DIRECTORY_URL') ?? letsEncrypt),
    ca: authoritiesOf(lookup('ACME_CA_FILE')),
  }
}

/** The domains of `--domain`; none without it. Throws `EnvironmentError`. */
export function domainsOf(domain: string | undefined): readonly string[] {
  if (domain === undefined) return []
  const domains = parseDomains(domain)
  if (typeof domains === 'string') throw new EnvironmentError(domains)
  return domains
}

function portOf(flags: Flags, name: 'https-port' | 'http-port', otherwise: number): number {
  const text = flags[name]
  if (text === undefined) return otherwise
  const port = /^\d{1,5}$/.test(text) ? Number(text) : 0
  if (port >= 1 && port <= 65_535) return port
  throw new EnvironmentError(`--${name} must be a number from 1 to 65535`)
}

function directoryOf(text: string): string {
  if (URL.parse(text)?.protocol === 'https:') return text
  throw new EnvironmentError(
    `ACME_DIRECTORY_URL must be the https: URL of an ACME directory, such as ${letsEncrypt}`,
  )
}

function authoritiesOf(path: string | undefined): string | undefined {
  if (path === undefined) return undefined
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch (error) {
    throw new EnvironmentError(`the file that ACME_CA_FILE names cannot be read (${codeOf(error)})`)
  }
  if (text.includes('-----BEGIN CERTIFICATE-----')) return text
  throw new EnvironmentError('the file that ACME_CA_FILE names has no certificate: it must be PEM')
}
