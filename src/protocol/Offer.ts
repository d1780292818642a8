import type { Address, Hex } from 'viem'
import * as Abi from './Abi'
import * as Crypto from './Crypto'
import type { Network } from './Network'

/** A price on one network, payable to one wallet. */
export type Offer = { network: Network; payTo: Address; amountAtomic: bigint }

/** The signed terms of an x402 `accepts` entry. */
type Terms = {
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

const artifact = artifactOf<SignedOffer['payload']>(
  'x402 offer',
  'Offer(uint256 version,string resourceUrl,string scheme,string network,string asset,' +
    'string payTo,string amount,uint256 validUntil)',
)

/** Signs an `accepts` entry. `validUntil` in unix seconds. */
export function sign(
  input: { resourceUrl: string; requirements: Terms; validUntil: number },
  privateKey: Uint8Array,
): SignedOffer {
  const { scheme, network, asset, payTo, amount } = input.requirements
  const { resourceUrl, validUntil } = input
  const terms = { scheme, network, asset, payTo, amount }
  return artifact.sign({ version: 1, resourceUrl, ...terms, validUntil }, privateKey)
}

/** Signer of a signed offer; undefined when the signature is not canonical. */
export const verify = artifact.verify

/**
 * Signs and verifies artifacts of the extension by EIP-712. `type` has their members, which are
 * integers and texts. Their domain is on chain 1, whatever network is used.
 */
export function artifactOf<Payload extends Record<string, string | number>>(
  name: string,
  type: string,
) {
  const domainType = Abi.hashOf('EIP712Domain(string name,string version,uint256 chainId)')
  const domain = Abi.hash(domainType + Abi.hashOf(name) + Abi.hashOf('1') + Abi.uint(1))
  const typeHash = Abi.hashOf(type)
  const members = [...type.matchAll(/(\w+)[,)]/g)].map(([, member = '']) => member)

  function digest(payload: Payload): Uint8Array {
    let words = typeHash
    for (const member of members) {
      const value = payload[member] ?? ''
      words += typeof value === 'number' ? Abi.uint(value) : Crypto.keccak256(value).toHex()
    }
    return Abi.typedDigest(domain, words)
  }

  type Signed = { format: 'eip712'; payload: Payload; signature: Hex }
  return {
    sign(payload: Payload, privateKey: Uint8Array): Signed {
      return { format: 'eip712', payload, signature: Crypto.sign(digest(payload), privateKey) }
    },
    verify({ payload, signature }: Signed): Address | undefined {
      return Crypto.recover(digest(payload), signature)
    },
  }
}
