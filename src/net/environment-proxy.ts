/** Environment variables of the process, some of which name a proxy. */
export type Environment = Readonly<Record<string, string | undefined>>

/**
 * The proxy that the environment names for a configured host; false for none. The connection is
 * made to a resolved address, which `NO_PROXY` does not name. So fetch alone would use the proxy
 * against the operator's setting. https://about.gitlab.com/blog/we-need-to-talk-no-proxy/
 */
export function proxyFor(
  { protocol, hostname, port }: Pick<URL, 'protocol' | 'hostname' | 'port'>,
  env: Environment,
): string | false {
  const name = protocol === 'https:' ? 'https_proxy' : 'http_proxy'
  const proxy = env[name] || env[name.toUpperCase()]
  if (!proxy) return false
  const own = port || (protocol === 'https:' ? '443' : '80')
  const exceptions = (env.no_proxy || env.NO_PROXY || '').toLowerCase().split(/[\s,]+/)
  const host = hostname.toLowerCase().replace(/^\[|\]$/g, '')
  return exceptions.some((exception) => isNamed(exception, host, own)) ? false : proxy
}

/**
 * Matches `*`, a name and its subdomains (`.name` and `*.name` too), or an address; optional port.
 */
function isNamed(exception: string, host: string, port: string): boolean {
  if (exception === '*') return true
  const [, bracketed, plain = exception, wanted] =
    /^(?:\[([^\]]*)\]|([^:]*))(?::(\d+))?$/.exec(exception) ?? []
  if (wanted !== undefined && wanted !== port) return false
  const name = (bracketed ?? plain).replace(/^\*?\./, '')
  return name !== '' && (host === name || host.endsWith(`.${name}`))
}
