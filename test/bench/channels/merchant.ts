import { networkId } from '../paid/network'

/** What is bought by channels, from every candidate: an answer of the upstream. */

export const path = '/m/channels/item'

/** Atomic price of a request; the text of the merchant has the same in USD. */
export const priceAtomic = 100n

/** Each client deposits it, unless a sample says otherwise. */
export const depositAtomic = 5_000_000n

/** The gateway's channels, with the shipped terms, and the merchant that sells by them alone. */
export const merchantText = `
[networks."${networkId}".channels]
[[merchants]]
slug = "channels"
upstream = "https://model.example.com"
allow_private = true
concurrency_max = 512
networks = ["${networkId}"]
[[merchants.routes]]
path = "/item"
methods = ["GET"]
price = "0.0001"
schemes = ["channel"]
`
