import { builtIns, findBuiltIn } from '../../config/builtin'
import { isPrivate } from '../../config/values'

/** The answers for a new file, as they were typed. */
export type Answers = {
  /** URL of the API that is sold. */
  upstream: string
  /** USD per request. */
  price: string
  /** Words or CAIP-2 ids, with commas or blanks. */
  networks: string
  /** Address of the wallet that is paid. */
  payout: string
  /** URL of a node; undefined: the public ones. */
  rpc: string | undefined
}

/** Samples without a fault, for answers that are not known yet. */
export const defaults: Answers = {
  upstream: 'https://api.example.com',
  price: '0.01',
  networks: 'base',
  payout: '0x1111111111111111111111111111111111111111',
  rpc: undefined,
}

/** The text of a file of at most 25 lines that sells every path of an API at one price. */
export function compose({ upstream, price, networks, payout, rpc }: Answers): string {
  const names = networksIn(networks)
  const hasTestnet = names.some((name) => findBuiltIn(name)?.table.testnet === true)
  const list = `[${names.map(quoted).join(', ')}]`
  const url = URL.parse(upstream)
  const isOpen = url !== null && url.protocol === 'https:' && !isPrivate(url)
  const slug = slugOf(upstream)
  const usd = quoted(price.replace(/^\$\s*/, ''))
  const isLong = hasTestnet && rpc !== undefined
  return [
    `# What turnpike sells. After a change: turnpike check. ${reference('NAME')} is read from the environment.`,
    '[service]',
    said('base_url = "http://localhost:4020"', 'as buyers see it: https://pay.example.com'),
    said(`payout = ${quoted(payout)}`, 'the wallet that is paid'),
    said(`networks = ${list}`, `known: ${builtIns.map(({ word }) => word).join(', ')}`),
    ...(isLong ? [] : [said('# contact = "you@your.domain"', 'published in documents')]),
    '',
    ...nodes(names[0] ?? '', rpc, hasTestnet),
    said('[facilitator]', 'settles x402 payments to this wallet'),
    said(`min_amount = ${usd}`, 'the least that is worth the gas'),
    '',
    '[[merchants]]',
    said(`slug = ${quoted(slug)}`, `buyers ask below /m/${slug}`),
    `upstream = ${quoted(upstream)}`,
    ...(isOpen ? [] : [said('allow_private = true', 'for plain http and private addresses')]),
    ...(hasTestnet ? [`networks = ${list}`, said('testnet_ok = true', 'for test money')] : []),
    ...(isLong ? [] : [said(header, 'a key of the upstream')]),
    '[[merchants.routes]]',
    said('path = "/"', 'each path that no other route has'),
    'methods = ["GET", "POST"]',
    said(`price = ${usd}`, 'USD per request'),
    said('# [[merchants.routes]]', 'a second route, with its own price'),
    '# path = "/report"',
    '# price = "0.05"',
    '',
  ].join('\n')
}

const header = `# headers = { Authorization = "Bearer ${reference('API_KEY')}" }`

/** The block of a node: a comment without one, and nothing for test money. */
function nodes(name: string, rpc: string | undefined, hasTestnet: boolean): string[] {
  const header = `[networks.${quoted(findBuiltIn(name.toLowerCase())?.id ?? name)}]`
  if (rpc !== undefined)
    return [said(header, 'its keys replace built-in ones'), `rpc_urls = [${quoted(rpc)}]`, '']
  if (hasTestnet) return []
  return [
    said(`# ${header}`, 'your node: public ones are limited'),
    '# rpc_urls = ["https://..."]',
    '',
  ]
}

/** The words or ids of an answer. */
export function networksIn(answer: string): string[] {
  return answer
    .split(/[\s,]+/)
    .filter((name) => name !== '')
    .map((name) => name.toLowerCase())
}

/** `open-meteo` of https://api.open-meteo.com, and `api` of an address. */
export function slugOf(upstream: string): string {
  const url = URL.parse(upstream)
  if (url === null || isPrivate(url) || /^[\d.]+$|^\[/.test(url.hostname)) return 'api'
  const labels = url.hostname.split('.').filter((label) => !/^(api|www|)$/.test(label))
  const slug = labels[0]?.replace(/[^a-z0-9-]/g, '-')
  return slug === undefined || slug === '' || labels.length < 2 ? 'api' : slug
}

/** A name in the environment, as the file writes it. */
function reference(name: string): string {
  return `\${${name}}`
}

/** A TOML string. JSON has the same escapes. */
function quoted(text: string): string {
  return JSON.stringify(text)
}

/** A line with its comment at one column. */
function said(line: string, comment: string): string {
  return `${line.padEnd(54)} # ${comment}`
}
