import { readFileSync } from 'node:fs'
import { type ConnectionOptions, checkServerIdentity } from 'node:tls'
import type { ClientConfig } from 'pg'
import * as Url from './Url'

/** One way to connect to one host of the URL. */
export type Server = { host: Url.Host; isEncrypted: boolean; client: ClientConfig }

/**
 * The ways to connect, in the order in which they are tried. With `prefer` each host comes twice: by
 * TLS, then without. Throws `UrlError` when a file of the URL cannot be read.
 */
export function serversOf(target: Url.Target): readonly Server[] {
  const files = readFiles(target.files)
  return target.hosts.flatMap((host) =>
    waysOf(target.mode, host).map((isEncrypted) => ({
      host,
      isEncrypted,
      client: {
        host: host.host,
        port: host.port,
        user: target.user,
        database: target.database,
        // A function, so that the driver reads neither PGPASSWORD nor ~/.pgpass.
        password: () => target.password ?? '',
        ssl: isEncrypted ? { ...files, ...checksOf(target.mode, host.host) } : false,
        application_name: 'turnpike',
        // Otherwise PGOPTIONS would be read.
        options: '-c client_encoding=UTF8',
      },
    })),
  )
}

function waysOf(mode: Url.Mode, host: Url.Host): boolean[] {
  if (mode === 'disable' || Url.isSocket(host)) return [false]
  return mode === 'prefer' ? [true, false] : [true]
}

/** What of the server's certificate is checked. */
function checksOf(mode: Url.Mode, host: string): ConnectionOptions {
  if (mode === 'verify-full')
    return {
      rejectUnauthorized: true,
      // By hand, because the driver names no host that is an address.
      checkServerIdentity: (_, certificate) => checkServerIdentity(host, certificate),
    }
  if (mode === 'verify-ca')
    return { rejectUnauthorized: true, checkServerIdentity: () => undefined }
  return { rejectUnauthorized: false }
}

function readFiles({ rootCertificate, certificate, key }: Url.Target['files']): ConnectionOptions {
  return {
    ...(rootCertificate !== undefined && { ca: readPem(rootCertificate, 'sslrootcert') }),
    ...(certificate !== undefined && { cert: readPem(certificate, 'sslcert') }),
    ...(key !== undefined && { key: readPem(key, 'sslkey') }),
  }
}

function readPem(path: string, name: string): string {
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : 'unknown error'
    throw new Url.UrlError(
      `the file that ${name} in DATABASE_URL names cannot be read (${code}): name one that the ` +
        'user of turnpike can read',
    )
  }
  if (text.includes('-----BEGIN ')) return text
  throw new Url.UrlError(`the file that ${name} in DATABASE_URL names is no PEM`)
}
