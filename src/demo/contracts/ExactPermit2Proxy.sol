// SPDX-License-Identifier: MIT
pragma solidity ^0.8.28;

import {ISignatureTransfer, Permit2Proxy} from "./Permit2Proxy.sol";

/// @notice The x402ExactPermit2Proxy interface, for local chains: moves exactly the permitted amount
/// to the witness' payee, which the owner signed, so that the caller cannot redirect it.
/// https://github.com/coinbase/x402/blob/main/specs/schemes/exact/scheme_exact_evm.md
contract ExactPermit2Proxy is Permit2Proxy {
    struct Witness {
        address to;
        uint256 validAfter;
    }

    string public constant WITNESS_TYPE_STRING =
        "Witness witness)TokenPermissions(address token,uint256 amount)Witness(address to,uint256 validAfter)";
    bytes32 public constant WITNESS_TYPEHASH = keccak256("Witness(address to,uint256 validAfter)");

    function settle(
        ISignatureTransfer.PermitTransferFrom calldata permit,
        address owner,
        Witness calldata witness,
        bytes calldata signature
    ) external nonReentrant {
        move(permit, owner, witness, signature);
        emit Settled();
    }

    function settleWithPermit(
        EIP2612Permit calldata permit2612,
        ISignatureTransfer.PermitTransferFrom calldata permit,
        address owner,
        Witness calldata witness,
        bytes calldata signature
    ) external nonReentrant {
        allow(permit2612, permit.permitted, owner);
        move(permit, owner, witness, signature);
        emit SettledWithPermit();
    }

    function move(
        ISignatureTransfer.PermitTransferFrom calldata permit,
        address owner,
        Witness calldata witness,
        bytes calldata signature
    ) private {
        requireValid(permit.permitted.amount, owner, witness.to, witness.validAfter);
        PERMIT2.permitWitnessTransferFrom(
            permit,
            ISignatureTransfer.SignatureTransferDetails(witness.to, permit.permitted.amount),
            owner,
            keccak256(abi.encode(WITNESS_TYPEHASH, witness.to, witness.validAfter)),
            WITNESS_TYPE_STRING,
            signature
        );
    }
}
