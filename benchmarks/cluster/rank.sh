#!/bin/sh
# Starts a rank: gives it its NIC, by its number in its host, before MPI can choose others.
nic=e$((OMPI_COMM_WORLD_LOCAL_RANK % COCOLL_CLUSTER_NICS))
unset COCOLL_CLUSTER_NICS
export OMPI_MCA_btl_tcp_if_include="$nic"
export UCX_NET_DEVICES="$nic"
export FI_TCP_IFACE="$nic" FI_SOCKETS_IFACE="$nic"
export MPICH_NETWORK_IFACE="$nic"
export GLOO_SOCKET_IFNAME="$nic" TP_SOCKET_IFNAME="$nic" NCCL_SOCKET_IFNAME="=$nic"
exec "$@"
