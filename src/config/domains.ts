import { report, type Source } from './reader'

const label = /^(?!-)[a-z0-9-]{1,63}(?<!-)$/
const domainsMax = 100

/**
 * The DNS names of a comma list, in ASCII and lower case. Returns a text that says what is wrong
 * with it.
 */
export function parseDomains(text: string): readonly string[] | string {
  const names = text.split(',').map((part) => part.trim())
  const domains: string[] = []
  for (const name of names) {
    const domain = toAscii(name)
    if (domain === undefined)
      return `--domain ${JSON.stringify(name)} is no DNS name: write a name such as api.example.com, without https:// and without a port`
    if (!domains.includes(domain)) domains.push(domain)
  }
  if (domains.length > domainsMax) return `--domain takes ${domainsMax} names`
  return domains
}

/** A name of two or more labels; addresses, wildcards and URLs are none. */
function toAscii(name: string): string | undefined {
  if (/[/:@?#\\%\s*]/.test(name)) return undefined
  const host = URL.parse(`http://${name}`)?.hostname.replace(/\.$/, '') ?? ''
  const labels = host.split('.')
  const isName = labels.length > 1 && host.length <= 253 && labels.every((part) => label.test(part))
  return isName && !/^\d+$/.test(labels.at(-1) ?? '') ? host : undefined
}

/** `base_url` with `--domain`, unless the file has one. */
export function baseUrlOf(domains: readonly string[]): string | undefined {
  return domains[0] === undefined ? undefined : `https://${domains[0]}`
}

/** Reports a `base_url` that buyers could not reach by a certificate for these domains. */
export function checkDomains(source: Source, baseUrl: string, domains: readonly string[]): void {
  const wanted = baseUrlOf(domains)
  if (wanted === undefined) return
  const { protocol, hostname } = new URL(baseUrl)
  if (protocol === 'https:' && domains.includes(hostname)) return
  const message = `base_url ${baseUrl} contradicts --domain ${domains.join(',')}: write "${wanted}", or remove base_url`
  report(source, ['service', 'base_url'], message)
}
