import { hostOf } from '../../http/url'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { readServiceFile } from './ServiceFile'

/** A probe of a container is repeated after seconds: a longer wait would overlap with the next. */
const timeoutMs = 4_000

/**
 * Asks a running service whether it can sell. Returns the exit code: 0 when it can; 1 when it
 * cannot, does not answer, or has no address.
 */
export async function health(options: Run<'health'>): Promise<number> {
  const { out } = options
  const { url, isOwn } = target(options)
  const response = await ask(url, isOwn)
  await response.body?.cancel()
  const { origin } = url
  if (response.status === 200) out(`${origin} can sell`)
  else if (response.status === 503)
    out(`${origin} cannot sell now: ${origin}/readyz names the reason`)
  else out(`${origin} answers ${response.status}, and not as turnpike does: check the address`)
  return response.status === 200 ? 0 : 1
}

/** Where to ask; `isOwn` for the address in the file. */
function target({ file, env, url }: Run<'health'>): { url: URL; isOwn: boolean } {
  if (url !== undefined) {
    const parsed = URL.parse(url)
    if (parsed === null || !/^https?:$/.test(parsed.protocol))
      throw new CommandError(
        '--url is the base URL of the service, such as https://api.example.com',
      )
    return { url: new URL('/healthz', parsed), isOwn: false }
  }
  const { hostname, port } = readServiceFile(file, env).listen
  // These stand for every address of this machine, and are none themselves.
  const any: Readonly<Record<string, string>> = { '0.0.0.0': '127.0.0.1', '::': '::1' }
  const host = hostOf(any[hostname] ?? hostname)
  return { url: new URL(`http://${host}:${port}/healthz`), isOwn: true }
}

async function ask(url: URL, isOwn: boolean): Promise<Response> {
  try {
    return await fetch(url, {
      redirect: 'manual',
      signal: AbortSignal.timeout(timeoutMs),
      // A proxy of the environment does not reach this machine's own address.
      ...(isOwn ? { proxy: false } : {}),
    })
  } catch (cause) {
    throw new CommandError(`${url.origin} does not answer: is serve running?`, { cause })
  }
}
