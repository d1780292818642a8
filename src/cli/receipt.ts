import { readFileSync } from 'node:fs'
import type { Address } from 'viem'
import * as AddressText from '../protocol/Address'
import { decodeJson } from '../protocol/Header'
import * as Json from '../protocol/Json'
import { isFault } from '../protocol/Problem'
import * as Receipt from '../protocol/Receipt'
import { publishedSigner } from './outcome'

export type ReceiptOptions = {
  /** A receipt, the name of a file with one, or `-`. */
  receipt: string
  /** Address of the receipt key. */
  key?: string | undefined
  /** Base URL of the service that publishes it. */
  url?: string | undefined
  /** Reads all of the standard input. */
  stdin: () => Promise<string>
  /** Prints one line. */
  out: (line: string) => void
}

/** Why the receipt cannot be checked. The message is for the user. */
class ReceiptError extends Error {
  override readonly name = 'ReceiptError'
}

/** Longer than any receipt with the head of an answer around it. */
const textMaxLength = 1024 * 1024

/**
 * Checks a receipt of either protocol against the key that the service publishes. Prints its
 * content and its signer. Returns the exit code: 0 when the key signed exactly this content.
 */
export async function verifyReceipt(options: ReceiptOptions): Promise<number> {
  const { out } = options
  try {
    const text = receiptIn(await read(options))
    const receipt = Receipt.parse(text)
    if (isFault(receipt)) throw new ReceiptError(receipt.detail)
    const wanted = await keyOf(options)
    const { network, resourceUrl, payer, issuedAt, transaction } = receipt.payload
    out(`resource     ${printable(resourceUrl)}`)
    out(`paid by      ${printable(payer)} on ${printable(network)}`)
    out(`transaction  ${printable(transaction)}`)
    out(`issued       ${timeOf(issuedAt)}`)
    const signer = Receipt.verify(receipt)
    out(`signed by    ${signer ?? 'no address: the signature is not valid'}`)
    const differing = differences(text, receipt)
    if (signer === undefined || !AddressText.equal(signer, wanted)) {
      out(`NOT VALID: the receipt key is ${wanted}`)
      return 1
    }
    if (differing.length > 0) {
      out(`NOT VALID: ${differing.join(', ')} beside the signed receipt says something else`)
      return 1
    }
    out('valid: signed by the receipt key')
    return 0
  } catch (error) {
    if (!(error instanceof ReceiptError)) throw error
    out(`turnpike: ${error.message}`)
    return 1
  }
}

async function read({ receipt, stdin }: ReceiptOptions): Promise<string> {
  const text = receipt === '-' ? await stdin() : (fileText(receipt) ?? receipt)
  if (text.length > textMaxLength) throw new ReceiptError('this is too long for a receipt.')
  return text
}

/** Undefined when there is no such file. */
function fileText(name: string): string | undefined {
  try {
    return readFileSync(name, 'utf8')
  } catch {
    return undefined
  }
}

const header = /^(?:[<*]\s*)?(?:payment-receipt|(?:x-)?payment-response)\s*:\s*(\S+)\s*$/im

/** The receipt alone, from a header line or from the head of a saved answer. */
function receiptIn(text: string): string {
  return header.exec(text)?.[1] ?? text.trim()
}

async function keyOf({ key, url }: ReceiptOptions): Promise<Address> {
  if (key !== undefined) {
    const address = AddressText.parse(key)
    // Do not repeat the value: the user may have pasted a private key.
    if (address === undefined) throw new ReceiptError('--key is the address of the receipt key.')
    return address
  }
  // The key that the receipt itself names proves nothing, because anyone can sign and publish
  // another key.
  if (url === undefined)
    throw new ReceiptError('name the receipt key by --key ADDRESS, or its service by --url URL.')
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol))
    throw new ReceiptError('--url is the base URL of the service, such as https://pay.example.com.')
  const published = await publishedSigner(new URL(url))
  if (published === undefined) throw new ReceiptError(`${url} publishes no receipt key.`)
  return published
}

/**
 * Members of a PAYMENT-RESPONSE, which are not signed, that contradict the signed receipt in it.
 */
function differences(text: string, { payload }: Receipt.Signed): string[] {
  const json = text.startsWith('{') ? Json.parse(text) : decodeJson(text, 'either')
  return (['transaction', 'network', 'payer'] as const).filter((name) => {
    const value = Json.member(json, name)
    return typeof value === 'string' && value.toLowerCase() !== payload[name].toLowerCase()
  })
}

function timeOf(seconds: number): string {
  const time = new Date(seconds * 1000)
  return Number.isNaN(time.getTime()) ? `${seconds} s since 1970` : time.toISOString()
}

/** Text from another party must not control the terminal. */
function printable(text: string): string {
  return text.replace(/[^\x20-\x7e]/g, '?')
}
