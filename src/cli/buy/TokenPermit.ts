import type { Address, Hex } from 'viem'
import * as Abi from '../../protocol/Abi'
import type { Asset } from '../../protocol/Asset'
import * as Authorization from '../../protocol/Authorization'
import * as Crypto from '../../protocol/Crypto'
import * as Permit from '../../protocol/Permit'

/**
 * The buyer's EIP-2612 permit of a token for Permit2: a signature instead of an approve. x402
 * specs/extensions/eip2612_gas_sponsoring.md.
 */

/** The buyer's info of the x402 extension `eip2612GasSponsoring`. */
export type Info = {
  from: Address
  asset: Address
  spender: Address
  amount: string
  nonce: string
  deadline: string
  signature: Hex
  version: string
}

/** The permitted amount, and the signing domain. */
export type Permitted = {
  asset: Pick<Asset, 'address' | 'eip712'>
  chainId: number
  amountAtomic: bigint
}

const typeHash = Abi.hashOf(
  'Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)',
)

/**
 * Signs a permit for exactly the amount. `nonce` is the token's for the owner, `deadline` is unix
 * seconds.
 */
export function sign(
  { asset, chainId, amountAtomic }: Permitted,
  privateKey: Uint8Array,
  { nonce, deadline }: { nonce: bigint; deadline: bigint },
): Info {
  const from = Crypto.addressOf(privateKey)
  const spender = Permit.permit2Address
  const words =
    typeHash +
    Abi.address(from) +
    Abi.address(spender) +
    Abi.uint(amountAtomic) +
    Abi.uint(nonce) +
    Abi.uint(deadline)
  const domain = Authorization.domainSeparator(chainId, asset.address, asset.eip712)
  return {
    from,
    asset: asset.address,
    spender,
    amount: String(amountAtomic),
    nonce: String(nonce),
    deadline: String(deadline),
    signature: Crypto.sign(Abi.typedDigest(domain, words), privateKey),
    version: '1',
  }
}
