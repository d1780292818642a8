// SPDX-License-Identifier: MIT
pragma solidity ^0.8.28;

library Signatures {
    bytes32 private constant MAX_S = 0x7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0;
    bytes4 internal constant ERC1271_MAGIC = 0x1626ba7e;

    enum Fault {
        None,
        Length,
        S,
        V,
        Signer
    }

    /// @dev ECDSA only; 65 bytes r, s, v with low s and v of 27 or 28.
    function recover(bytes32 digest, bytes memory signature) internal pure returns (address, Fault) {
        if (signature.length != 65) return (address(0), Fault.Length);
        bytes32 r;
        bytes32 s;
        uint8 v;
        assembly ("memory-safe") {
            r := mload(add(signature, 32))
            s := mload(add(signature, 64))
            v := byte(0, mload(add(signature, 96)))
        }
        if (s > MAX_S) return (address(0), Fault.S);
        if (v != 27 && v != 28) return (address(0), Fault.V);
        address signer = ecrecover(digest, v, r, s);
        return (signer, signer == address(0) ? Fault.Signer : Fault.None);
    }

    /// @dev Any code at the signer, an EIP-7702 delegation included, means ERC-1271, as USDC does.
    function check(address signer, bytes32 digest, bytes memory signature) internal view returns (Fault) {
        if (signer.code.length == 0) {
            (address recovered, Fault fault) = recover(digest, signature);
            if (fault != Fault.None) return fault;
            return recovered == signer ? Fault.None : Fault.Signer;
        }
        (bool ok, bytes memory result) =
            signer.staticcall(abi.encodeWithSelector(ERC1271_MAGIC, digest, signature));
        bool valid = ok && result.length >= 32 && bytes32(result) == bytes32(ERC1271_MAGIC);
        return valid ? Fault.None : Fault.Signer;
    }
}
