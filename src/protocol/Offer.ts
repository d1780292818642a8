import type { Address, Hex } from 'viem'
import * as Abi from './Abi'
import * as Crypto from './Crypto'
import type { Network } from './Network'

/** A price on one network, payable to one wallet. */
export type Offer = { network: Network; payTo: Address; amountAtomic: bigint }

/** The signed terms of an x402 `accepts` entry. */
export type Terms = {
  scheme: string
  network: string
  asset: string
  payTo: string
  amount: string
}

/** Signed offer of the x402 offer-receipt extension, section 4. */
export type SignedOffer = {
  format: 'eip712'
  payload: Terms & { version: 1; resourceUrl: string; validUntil: number }
  signature: Hex
}

const domainSeparator = artifactDomain('x402 offer')
const offerType = Abi.hashOf(
  'Offer(uint256 version,string resourceUrl,string scheme,string network,string asset,' +
    'string payTo,string amount,uint256 validUntil)',
)

/** Domain separator of the extension's artifacts: chain 1, whatever network is used. */
export function artifactDomain(name: string): string {
  const type = 'EIP712Domain(string name,string version,uint256 chainId)'
  const words = Abi.hashOf(type) + Abi.hashOf(name) + Abi.hashOf('1') + Abi.uint(1)
  return Abi.hash(words).toHex()
}

/** Signs an `accepts` entry. `validUntil` in unix seconds. */
export function sign(
  input: { resourceUrl: string; requirements: Terms; validUntil: number },
  privateKey: Uint8Array,
): SignedOffer {
  const { scheme, network, asset, payTo, amount } = input.requirements
  const payload = {
    version: 1 as const,
    resourceUrl: input.resourceUrl,
    scheme,
    network,
    asset,
    payTo,
    amount,
    validUntil: input.validUntil,
  }
  return { format: 'eip712', payload, signature: Crypto.sign(digest(payload), privateKey) }
}

/** Signer of a signed offer; undefined when the signature is not canonical. */
export function verify(offer: SignedOffer): Address | undefined {
  return Crypto.recover(digest(offer.payload), offer.signature)
}

function digest(payload: SignedOffer['payload']): Uint8Array {
  const words =
    offerType +
    Abi.uint(payload.version) +
    Abi.hashOf(payload.resourceUrl) +
    Abi.hashOf(payload.scheme) +
    Abi.hashOf(payload.network) +
    Abi.hashOf(payload.asset) +
    Abi.hashOf(payload.payTo) +
    Abi.hashOf(payload.amount) +
    Abi.uint(payload.validUntil)
  return Abi.typedDigest(domainSeparator, Abi.hash(words))
}
