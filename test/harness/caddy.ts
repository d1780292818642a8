import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type FrontProxy, findProgram, type Place, sample, startFrontProxy } from './front-proxy'

/** Path of a Caddy on this machine, if there is one. CADDY names another one, or none if empty. */
export const caddyPath = findProgram('caddy', ['/usr/local/bin/caddy', '/opt/homebrew/bin/caddy'])

/**
 * Caddy in front of a server by the sample of deploy/. Only the site's name, its certificate and the
 * server are replaced. Throws when it does not start.
 */
export async function startCaddy(target: string): Promise<FrontProxy> {
  if (caddyPath === undefined) throw new Error('there is no Caddy')
  return startFrontProxy(target, write)
}

function write({ directory, port, tlsPort, target, certFile, keyFile }: Place): string[] {
  const site = (address: string, more: string) =>
    sample('Caddyfile', [
      ['api.example.com {', `${address} {\n${more}`],
      ['127.0.0.1:4020', target.replace('http://', '')],
    ])
  const file = join(directory, 'Caddyfile')
  const global = `{
	admin off
	auto_https off
}`
  const plain = site(`http://127.0.0.1:${port}`, '')
  const tls = site(`https://localhost:${tlsPort}`, `	tls ${certFile} ${keyFile}`)
  writeFileSync(file, [global, plain, tls].join('\n'))
  return [caddyPath ?? '', 'run', '--config', file, '--adapter', 'caddyfile']
}
