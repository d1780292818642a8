import { readFileSync } from 'node:fs'
import type { Address } from 'viem'
import { builtIns } from '../../config/builtin'
import { bodyDigest, fingerprint } from '../../paywall/credential'
import * as AddressText from '../../protocol/Address'
import { decodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import { isFault } from '../../protocol/Problem'
import * as Receipt from '../../protocol/Receipt'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { dollars } from '../mcp/Sentences'
import { publishedSigner } from './outcome'

type Options = Run<'receipt'>

/** Longer than any receipt with the head of an answer around it. */
const textMaxLength = 1024 * 1024

/**
 * Checks a receipt of either protocol against the key that the service publishes. Prints its
 * content and its signer. Returns the exit code: 0 when the key signed exactly this content.
 */
export async function verifyReceipt(
  options: Options,
  stdin = () => Bun.stdin.text(),
): Promise<number> {
  const { operand, out } = options
  const text = receiptIn(await read(operand, stdin))
  const receipt = Receipt.parse(text)
  if (isFault(receipt)) throw new CommandError(receipt.detail)
  const wantedKey = await keyOf(options)
  const { network, resourceUrl, payer, issuedAt, transaction } = receipt.payload
  const { request, amount, order } = Receipt.purchaseOf(receipt)
  out(`resource     ${printable(resourceUrl.split('#')[0] ?? '')}`)
  if (request !== undefined) out(`request      sha256 ${printable(request)}`)
  if (amount !== undefined) out(`amount       ${printable(amount)} atomic`)
  if (order !== undefined) out(`order        ${printable(order)}`)
  out(`paid by      ${printable(payer)} on ${printable(network)}`)
  out(`transaction  ${printable(transaction) || 'none: by a payment channel'}`)
  out(`issued       ${timeOf(issuedAt)}`)
  const signer = Receipt.verify(receipt)
  out(`signed by    ${signer ?? 'no address: the signature is not valid'}`)
  const differing = differences(text, receipt)
  if (signer === undefined || !AddressText.equal(signer, wantedKey)) {
    out(`NOT VALID: the receipt key is ${wantedKey}`)
    return 1
  }
  const { request: asked } = options
  if (asked !== undefined && !hashesOf(options, asked).some((each) => each === request)) {
    out('NOT VALID: it is for another request')
    return 1
  }
  if (differing.length > 0) {
    out(`NOT VALID: ${differing.join(', ')} beside the signed receipt says something else`)
    return 1
  }
  out(sentenceOf(receipt))
  out('valid: signed by the receipt key')
  return 0
}

/** What was paid to whom and when. A receipt names no asset, and each network has one. */
function sentenceOf(receipt: Receipt.Signed): string {
  const { network, resourceUrl, issuedAt } = receipt.payload
  const { amount = '' } = Receipt.purchaseOf(receipt)
  // Assets have six decimals.
  const asset = builtIns.find(({ id }) => id === network)?.table.asset
  const paid =
    asset === undefined || amount === ''
      ? `${amount} atomic units on ${printable(network)}`
      : `${dollars(BigInt(amount))} ${asset.symbol}`
  const { host = '', pathname = '' } = URL.parse(resourceUrl) ?? {}
  const [, merchant] = /^.*\/m\/([^/]+)/.exec(pathname) ?? []
  const seller = printable(merchant === undefined ? host : `${merchant} at ${host}`)
  const time = timeOf(issuedAt).replace('T', ' ').slice(0, 16)
  return `You paid ${paid} to ${seller}, ${time} UTC.`
}

async function read(receipt: string, stdin: () => Promise<string>): Promise<string> {
  const text = receipt === '-' ? await stdin() : (fileOf(receipt)?.toString() ?? receipt)
  if (text.length > textMaxLength) throw new CommandError('this is too long for a receipt.')
  return text
}

/** What the hash of a charge by use has of the headers of a client that accepts anything. */
const usualHeaders = '*/*\n\n\n'

/**
 * The hashes of a request, as the service computes them, with its path below the URL of the service: at
 * a fixed price, and charged by its use.
 */
function hashesOf({ url, method = 'GET', body = '' }: Options, request: string): string[] {
  if (!URL.canParse(request))
    throw new CommandError('--request is a URL, such as https://pay.example.com/m/shop/item?a=1.')
  const { pathname, search } = new URL(request)
  const base = url === undefined ? '' : new URL(url).pathname.replace(/\/$/, '')
  const path = pathname.startsWith(`${base}/`) ? pathname.slice(base.length) : pathname
  const bytes = body.startsWith('@') ? fileOf(body.slice(1)) : Buffer.from(body)
  if (bytes === undefined) throw new CommandError('--body names a file that cannot be read.')
  const digest = bodyDigest(bytes)
  return [undefined, usualHeaders].map((headers) =>
    fingerprint(method.toUpperCase(), path, search, { digest, headers }),
  )
}

/** Undefined when it cannot be read. */
function fileOf(name: string): Buffer | undefined {
  try {
    return readFileSync(name)
  } catch {
    return undefined
  }
}

const header = /^(?:[<*]\s*)?(?:payment-receipt|(?:x-)?payment-response)\s*:\s*(\S+)\s*$/im

/** The receipt alone, from a header line or from the head of a saved answer. */
function receiptIn(text: string): string {
  return header.exec(text)?.[1] ?? text.trim()
}

async function keyOf({ key, url }: Options): Promise<Address> {
  if (key !== undefined) {
    const address = AddressText.parse(key)
    // Do not repeat the value: the user may have pasted a private key.
    if (address === undefined) throw new CommandError('--key is the address of the receipt key.')
    return address
  }
  // The key that the receipt itself names proves nothing, because anyone can sign and publish
  // another key.
  if (url === undefined)
    throw new CommandError('name the receipt key by --key ADDRESS, or its service by --url URL.')
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol))
    throw new CommandError('--url is the base URL of the service, such as https://pay.example.com.')
  const published = await publishedSigner(new URL(url))
  if (published === undefined) throw new CommandError(`${url} publishes no receipt key.`)
  return published
}

/**
 * Members of a PAYMENT-RESPONSE, which are not signed, that contradict the signed receipt in it.
 */
function differences(text: string, receipt: Receipt.Signed): string[] {
  const json = text.startsWith('{') ? Json.parse(text) : decodeJson(text, 'either')
  const { transaction, network, payer } = receipt.payload
  const { amount } = Receipt.purchaseOf(receipt)
  // By a channel `amount` is that of a deposit, or empty.
  const charged = Json.member(Json.child(json, 'extra'), 'chargedAmount')
  return Object.entries({ transaction, network, payer, amount }).flatMap(([name, signed]) => {
    const value = name === 'amount' && charged !== undefined ? charged : Json.member(json, name)
    const isSame = signed === undefined || typeof value !== 'string'
    return isSame || value.toLowerCase() === signed.toLowerCase() ? [] : [name]
  })
}

function timeOf(seconds: number): string {
  return new Date(seconds * 1000).toISOString()
}

/** Text from another party must not control the terminal. */
function printable(text: string): string {
  return text.replace(/[^\x20-\x7e]/g, '?')
}
